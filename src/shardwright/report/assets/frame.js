// What all figures share: a title with its unit, a legend, redrawing when the width changes, and one place that
// pointer and keyboard move over.

function legend(entries) {
  return el("ul", { class: "legend" }, entries.map(([name, text, shape]) => el("li", {}, swatch(name, shape), text)));
}

// A figure whose drawing depends on its width.
//   draw(width) returns {node, count, at(x, y) → place or null, centre(place) → [x, y], mark(place)}
//   describe(place) returns [title, rows]
//   act(place), if there is one, is what a click or Enter does
function figure({ title, note, entries = [], draw, describe, act = null, controls = null, className = "" }) {
  const stage = el("div", { class: "stage", tabindex: "0", role: "group", "aria-roledescription": "chart", "aria-label":
    `${title}. Use the arrow keys to read its values${act ? ", and Enter to choose one" : ""}.` });
  const whole = el("figure", { class: className }, el("figcaption", {}, el("h3", {}, title), note && el("p", {}, note), controls),
    entries.length ? legend(entries) : null, el("div", { class: "sideways" }, stage));
  let drawing = null;
  let place = 0;
  const redraw = () => {
    const width = Math.floor(stage.parentElement.clientWidth);
    if (!width) return;
    drawing = draw(width);
    stage.replaceChildren(drawing.node);
  };
  const show = (where, at, speak) => {
    place = where;
    drawing.mark(where);
    tip.show(stage, at, ...describe(where), speak);
  };
  const leave = () => {
    if (drawing) drawing.mark(null);
    tip.hide(stage);
  };
  const follow = (event) => {
    const box = stage.getBoundingClientRect();
    const where = drawing && drawing.at(event.clientX - box.left, event.clientY - box.top);
    if (where === null) leave();
    else show(where, [event.clientX, event.clientY], false);
  };
  stage.addEventListener("pointermove", follow);
  stage.addEventListener("pointerdown", follow);
  stage.addEventListener("pointerleave", (event) => event.pointerType === "touch" || leave()); // a finger that is lifted leaves its note
  stage.addEventListener("blur", leave);
  stage.addEventListener("click", (event) => {
    const box = stage.getBoundingClientRect();
    const where = act && drawing.at(event.clientX - box.left, event.clientY - box.top);
    if (act && where !== null) act(where);
  });
  stage.addEventListener("keydown", (event) => {
    if (!drawing) return;
    if (act && event.key === "Enter" && tip.owner === stage) {
      act(place);
      return;
    }
    const last = drawing.count - 1;
    const next = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: last, Enter: place, PageUp: place - 8, PageDown: place + 8 }[event.key];
    if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const where = clamp(next, 0, last);
    const [x, y] = drawing.centre(where);
    stage.parentElement.scrollLeft = x - stage.parentElement.clientWidth / 2;
    show(where, () => {
      const box = stage.getBoundingClientRect();
      return [box.left + x, box.top + y];
    }, true);
  });
  new ResizeObserver(redraw).observe(stage.parentElement);
  whole.redraw = redraw;
  return whole;
}

// A vertical axis from 0 up to `top`: grid lines and labels.
function gridlines(top, unit, { left, right, y }) {
  const values = ticks(top);
  const labels = tickLabels(values, unit);
  return svg("g", { class: "grid" }, values.map((value, index) => [
    svg("line", { x1: left, x2: right, y1: y(value), y2: y(value) }),
    svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, labels[index]),
  ]));
}
