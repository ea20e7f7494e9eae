// The matrix of tables × devices: scrolled, sorted, filtered, read by pointer and by keyboard. Only what is visible is painted.

function choice(label, options, value, change) {
  const list = el("select", { "aria-label": label, onchange: () => change(list.value) }, options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
  return el("label", {}, el("span", {}, label), list);
}

function tableOrders(plan) {
  const gain = plan.worth || plan.bytesOf;
  const own = plan.names.map((_, table) => (plan.cells ? sum([...plan.row(table).values()].map((cell) => sum(cell.ms))) : 0));
  return {
    gain: (a, b) => gain[b] - gain[a] || own[b] - own[a] || a - b,
    time: (a, b) => own[b] - own[a] || a - b,
    bytes: (a, b) => plan.bytesOf[b] - plan.bytesOf[a] || a - b,
    kind: (a, b) => KINDS.indexOf(plan.blocks.types[a]) - KINDS.indexOf(plan.blocks.types[b]) || own[b] - own[a] || a - b,
    name: (a, b) => plan.names[a].localeCompare(plan.names[b], undefined, { numeric: true }),
    task: (a, b) => a - b,
  };
}

function cellNote(plan, table, device) {
  const cell = plan.row(table).get(device);
  const title = `${plan.names[table]} on ${plan.where(device)}`;
  const type = ["sharding type", plan.blocks.types[table]];
  if (!cell) return [title, [["here", "no block"], type, ["lies on", plural(plan.row(table).size, "device")]]];
  const shown = cell.blocks.slice(0, 3).map((block) => ["block", blockText(plan, block)]);
  if (cell.blocks.length > 3) shown.push(["", `and ${plural(cell.blocks.length - 3, "more block")}`]);
  const copies = most(cell.blocks.map((block) => holders(plan, block).length));
  const rows = [...shown, type, ["memory", `${bytes(cell.bytes)} of ${bytes(plan.limit[device])}`]];
  if (copies > 1) rows.push(["copies", plural(copies, "device")]);
  if (cell.ms) {
    rows.push(["without it", `${ms(sum(cell.ms))} less of ${ms(plan.totals[device])} (${percent(plan.totals[device] ? sum(cell.ms) / plan.totals[device] : 0)})`]);
    PHASES.forEach((phase, at) => rows.push([`· ${phase}`, ms(cell.ms[at])]));
  }
  if (plan.received) rows.push(["receives", bytes(plan.received(cell, table, device))]);
  return [title, rows];
}

class Matrix {
  constructor(plan) {
    this.plan = plan;
    this.orders = tableOrders(plan);
    this.state = { sort: plan.worth ? "gain" : "bytes", mode: plan.cells ? "time" : "bytes", rows: "names", filter: "", place: [0, 0] };
    this.view = { plan, order: [], theme: canvasTheme() };
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.cursor = el("div", { class: "cell-cursor", hidden: true });
    this.space = el("div", { class: "space" }, this.canvas, this.cursor);
    const label = "Matrix of tables and devices. Arrow keys move from cell to cell, Page Up and Page Down by ten tables.";
    this.scroller = el("div", { class: "matrix", tabindex: "0", role: "group", "aria-roledescription": "matrix", "aria-label": label }, this.space);
    this.key = el("div", { class: "key" });
    this.count = el("span", { class: "count", role: "status" });
    this.listen();
    new ResizeObserver(() => this.measure()).observe(this.scroller);
    this.arrange();
  }

  title() { return "Devices of each part of each table"; }

  note(row, device) { return cellNote(this.plan, this.view.order[row], device); }

  node() {
    const whole = el("figure", { class: "wide" }, el("figcaption", {}, el("h3", {}, this.title()), this.controls()), this.key, this.scroller);
    whole.redraw = () => {
      this.view.theme = canvasTheme();
      this.key.replaceChildren(...colourKey(this.view, this.state.mode));
      this.paint();
    };
    return whole;
  }

  controls() {
    const { plan, state } = this;
    const change = (name) => (value) => { state[name] = value; this.arrange(); };
    const modes = [plan.cells && ["time", "time without the table"], ["bytes", "memory"], ["kind", "sharding type"], plan.received && ["change", "bytes received"]];
    const sorts = [plan.worth && ["gain", "time of the step without it"], plan.cells && ["time", "time"], ["bytes", "memory"], ["kind", "sharding type"],
      ["name", "name"], ["task", "order of the task"]];
    const search = el("input", { type: "search", "aria-label": "Filter", placeholder: "part of a name", oninput: () => change("filter")(search.value) });
    return el("div", { class: "controls" },
      choice("Colour", modes.filter(Boolean), state.mode, change("mode")), choice("Order", sorts.filter(Boolean), state.sort, change("sort")),
      choice("Rows", [["names", "with names"], ["compact", "compact"]], state.rows, change("rows")), el("label", {}, el("span", {}, "Filter"), search), this.count);
  }

  // Which tables, in which order and colours.
  arrange() {
    const { plan, state, view } = this;
    const wanted = state.filter.toLowerCase();
    view.order = range(plan.names.length).filter((table) => plan.names[table].toLowerCase().includes(wanted)).sort(this.orders[state.sort]);
    view.how = colouring(plan, state.mode);
    view.top = view.how.kind ? 0 : highest(plan, view.how);
    this.count.textContent = plural(view.order.length, "table");
    this.key.replaceChildren(...colourKey(view, state.mode));
    state.place = [0, 0];
    this.cursor.hidden = true;
    this.measure();
  }

  measure() {
    const { plan, view, scroller, space } = this;
    const width = scroller.clientWidth;
    if (!width) return;
    const height = this.state.rows === "names" ? 18 : clamp(Math.floor(520 / Math.max(1, view.order.length)), 2, 18);
    view.labels = height >= 12 ? clamp(width * 0.22, 84, 190) : 4;
    view.cell = [clamp((width - view.labels - 1) / plan.devices, 5, 150), height];
    space.style.width = Math.max(width, Math.ceil(view.labels + view.cell[0] * plan.devices)) + "px";
    space.style.height = HEAD + height * view.order.length + "px";
    scroller.style.height = Math.min(560, HEAD + height * view.order.length + 16) + "px";
    this.draw();
  }

  paint() {
    const { scroller, view } = this;
    if (view.cell) paint(this.canvas, view, { left: scroller.scrollLeft, top: scroller.scrollTop }, [scroller.clientWidth, scroller.clientHeight]);
  }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.paint(); });
  }

  point(row, device, at, speak) {
    this.state.place = [row, device];
    this.lay(this.cursor, row, device);
    this.cursor.hidden = false;
    tip.show(this.scroller, at, ...this.note(row, device), speak);
  }

  // A frame around a cell.
  lay(frame, row, device) {
    const { view } = this;
    const [width, height] = view.cell;
    Object.assign(frame.style, { left: view.labels + device * width + "px", top: HEAD + row * height + "px", width: width + "px", height: height + "px" });
  }

  leave() {
    this.cursor.hidden = true;
    tip.hide(this.scroller);
  }

  // The cell under the pointer, or null.
  locate(event) {
    const { plan, view, scroller } = this;
    const box = scroller.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const row = Math.floor((y + scroller.scrollTop - HEAD) / view.cell[1]);
    const device = Math.floor((x + scroller.scrollLeft - view.labels) / view.cell[0]);
    const inside = y >= HEAD && x >= view.labels && row >= 0 && row < view.order.length && device < plan.devices;
    return inside && x < scroller.clientWidth && y < scroller.clientHeight ? [row, device] : null;
  }

  listen() {
    const { scroller } = this;
    const follow = (event) => {
      const found = this.locate(event);
      if (found) this.point(...found, [event.clientX, event.clientY], event.type === "pointerdown");
      else this.leave();
    };
    scroller.addEventListener("scroll", () => { tip.scrolled(); this.draw(); }, { passive: true });
    scroller.addEventListener("pointermove", follow);
    scroller.addEventListener("pointerdown", follow);
    scroller.addEventListener("pointerleave", (event) => event.pointerType === "touch" || this.leave());
    scroller.addEventListener("blur", () => this.leave());
    scroller.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const [row, device] = this.state.place;
    const moves = { ArrowLeft: [row, device - 1], ArrowRight: [row, device + 1], ArrowUp: [row - 1, device], ArrowDown: [row + 1, device], Enter: [row, device],
      PageUp: [row - 10, device], PageDown: [row + 10, device], Home: [event.ctrlKey ? 0 : row, 0], End: [event.ctrlKey ? Infinity : row, Infinity] };
    const next = moves[event.key];
    const last = this.view.order.length - 1;
    if (!next || last < 0 || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.reveal(clamp(next[0], 0, last), clamp(next[1], 0, this.plan.devices - 1));
  }

  reveal(row, device) {
    const { view, scroller } = this;
    const [width, height] = view.cell;
    const [x, y] = [device * width, row * height];
    scroller.scrollLeft = clamp(scroller.scrollLeft, x + width + view.labels - scroller.clientWidth, x);
    scroller.scrollTop = clamp(scroller.scrollTop, y + height + HEAD - scroller.clientHeight, y);
    const corner = () => {
      const box = scroller.getBoundingClientRect();
      return [box.left + view.labels + x + width - scroller.scrollLeft, box.top + HEAD + y + height - scroller.scrollTop];
    };
    this.point(row, device, corner, true);
  }
}

function colourKey(view, mode) {
  if (view.how.kind) {
    const present = KINDS.filter((kind) => view.plan.blocks.types.includes(kind));
    return [legend(present.map((kind) => ["kind-" + KINDS.indexOf(kind), kind]))];
  }
  const write = mode === "time" ? ms : bytes;
  const steps = svg("svg", { class: "ramp", viewBox: `0 0 ${STEPS} 1`, preserveAspectRatio: "none", "aria-hidden": "true" },
    view.theme.ramp.map((shade, at) => svg("rect", { x: at, width: 1.05, height: 1, fill: shade })));
  return [el("p", { class: "scale" }, el("span", {}, view.how.name), el("span", {}, write(0)), steps, el("span", {}, write(view.top)), el("span", { class: "quiet" }, "(square-root scale)"))];
}
