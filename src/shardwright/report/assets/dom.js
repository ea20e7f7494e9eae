// Elements. All text goes in as text nodes: no name of a table or a file is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(2)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child);
  }
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// The colour that a variable of the style has in the present theme, for canvases.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// A small square of a colour, for legends; the colour is a class, as the page's policy forbids inline styles.
const swatch = (name, shape = "") => el("span", { class: `swatch ${shape} fill-${name}`, "aria-hidden": "true" });

const range = (count) => Array.from({ length: count }, (_, index) => index);
const sum = (values) => values.reduce((total, value) => total + value, 0);
const most = (values) => values.reduce((top, value) => (value > top ? value : top), 0);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

// A bar of a share of the width: an SVG, whose sizes are attributes.
const bar = (share, name) =>
  svg("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "fill-" + name, width: clamp(share * 100, 0, 100), height: 8 }));

// Rows that come in portions, with a button for the next. With `values`, the numbers or texts behind the cells, heads sort the rows.
function table(heads, rows, { first = 12, step = 50, caption = null, numeric = 1, values = null } = {}) {
  const body = el("tbody");
  const more = el("button", { type: "button", class: "more" });
  const order = range(rows.length);
  let shown = 0;
  const grow = (count) => {
    for (const index of order.slice(shown, shown + count)) {
      body.append(el("tr", {}, rows[index].map((cell, at) =>
        el(at ? "td" : "th", at ? { class: at >= numeric ? "number" : null } : { scope: "row" }, cell))));
    }
    shown = Math.min(rows.length, shown + count);
    more.hidden = shown === rows.length;
    more.textContent = `Show ${Math.min(step, rows.length - shown)} more of ${integer(rows.length)}`;
  };
  const sort = (column, down) => {
    const compare = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    order.sort((a, b) => (down ? -1 : 1) * compare(values[a][column], values[b][column]) || a - b);
    const count = Math.max(shown, first);
    body.replaceChildren();
    shown = 0;
    grow(count);
  };
  more.addEventListener("click", () => grow(step));
  grow(first);
  const cells = heads.map((name, at) => el("th", { scope: "col", class: at >= numeric ? "number" : null }, values ? sorter(name, at) : name));
  function sorter(name, at) {
    return el("button", { type: "button", class: "sort", onclick: () => {
      const before = cells[at].getAttribute("aria-sort");
      const turned = before ? before === "ascending" : at >= numeric;
      cells.forEach((cell) => cell.removeAttribute("aria-sort"));
      cells[at].setAttribute("aria-sort", turned ? "descending" : "ascending");
      sort(at, turned);
    } }, name);
  }
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, caption && el("caption", { class: "unseen" }, caption), el("thead", {}, el("tr", {}, cells)), body), more);
}
