// Pieces that the reader moves, cuts or joins. Each change is priced at once and compared with the original plan.

function whatIfSection(plan) {
  const draft = plan.draft || (plan.draft = new Draft(plan)); // changes stay when another plan is looked at meanwhile
  const parts = { figures: el("div", {}), said: el("p", { class: "said", role: "status" }), broken: el("div", {}), piece: el("div", {}), devices: el("div", {}) };
  let chosen = null;
  let steps = null; // of the chosen piece on each device
  const needs = (kind) => sum(plan.whatIf.kinds.memory[kind]);
  const free = (device, piece = null) => plan.limit[device] - sum(draft.now.cost.memory.map((part) => part[device])) + (piece && piece.devices.includes(device) ? needs(piece.kind) : 0);
  const full = (piece, device) => free(device, piece) < needs(draft.prices.alone(piece));
  const movable = (piece) => draft.prices.alone(piece) !== undefined;
  const lies = (piece, device) => piece.devices.length === 1 && piece.devices[0] === device;

  const choose = (piece) => {
    chosen = piece;
    steps = piece && movable(piece) ? draft.prices.everywhere(draft.now.pieces, piece, draft.now.cost) : null;
    board.choose(piece);
    parts.piece.replaceChildren(pieceFigure());
  };
  const weigh = (piece, device) => [`${draft.label(piece)} to ${plan.where(device)}`, [["the step would be", ms(steps[device])], ["against now", signed(steps[device] / draft.now.cost.step - 1)],
    ["room there", full(piece, device) ? "too little memory" : bytes(free(device, piece)) + " free"], lies(piece, device) && ["", "it lies here"]].filter(Boolean)];
  const drop = (piece, device) => done(draft.move(piece, device));
  const cut = (along) => chosen && draft.halves(chosen, along) && done(draft.cut(chosen, along));
  const copy = () => chosen && draft.copyable(chosen) && done(draft.copy(chosen));
  const join = () => chosen && draft.joint(chosen) && done(draft.join(chosen));
  const back = (way) => { draft[way](); done(null); };
  const board = new Board(plan, draft.now.pieces, { movable, choose, drop, weigh });

  // After every change: all figures anew.
  function done(piece) {
    const { pieces, what, cost, broken } = draft.now;
    const focused = place.contains(document.activeElement);
    tip.hide();
    board.show(pieces, null);
    choose(pieces.includes(piece) ? piece : null);
    parts.figures.replaceChildren(scores());
    parts.said.textContent = what === draft.first.what ? "Nothing is changed yet." : `${what}. Step ${ms(cost.step)}.`;
    parts.broken.replaceChildren(...broken.slice(0, 5).map((text) => el("p", { class: "note" }, text)),
      ...(broken.length > 5 ? [el("p", { class: "note" }, `And ${plural(broken.length - 5, "more rule")} broken.`)] : []));
    undo.disabled = start.disabled = !draft.past.length;
    redo.disabled = !draft.future.length;
    save.disabled = broken.length > 0;
    save.title = broken.length ? "A plan that breaks a rule cannot be saved" : "";
    parts.devices.replaceChildren(...deviceFigures());
    const lost = !place.contains(document.activeElement) || document.activeElement.disabled; // what had the focus is gone
    if (focused && lost) (parts.piece.querySelector(".stage") || board.scroller).focus({ preventScroll: true });
  }

  function scores() {
    const [before, now] = [draft.first.cost, draft.now.cost];
    const held = (cost) => range(plan.devices).map((device) => sum(cost.memory.map((part) => part[device])) / plan.limit[device]);
    const fullest = [before, now].map((cost) => most(held(cost)));
    const item = (name, value, was, write, detail) => el("div", { class: value > was * (1 + 1e-9) ? "worse" : value < was * (1 - 1e-9) ? "better" : null },
      el("dt", {}, name), el("dd", {}, el("data", { value: String(value) }, write(value)), value === was ? null : el("span", { class: "quiet" }, ` ${signed(value / was - 1)}`),
      detail && el("span", { class: "quiet where" }, detail)));
    return el("dl", { class: "facts scores" }, item("step", now.step, before.step, ms, ""),
      PHASES.map((phase, at) => item(phase, now.phaseMax[at], before.phaseMax[at], ms, `device ${now.phases[at].indexOf(now.phaseMax[at])}`)),
      item("fullest device", fullest[1], fullest[0], used, `device ${held(now).indexOf(fullest[1])}`));
  }

  function deviceFigures() {
    const { cost } = draft.now;
    const totals = ({ phases }) => range(plan.devices).map((device) => sum(phases.map((times) => times[device])));
    const shared = { order: range(plan.devices), perHost: plan.task.perHost, height: 200 };
    const heavy = range(plan.devices).some((device) => free(device) < 0.8 * plan.limit[device]);
    return [columns({ ...shared, title: "Time of each device after the changes (ms)", unit: "ms", series: PHASES.map((text, at) => ({ name: "phase-" + at, text, values: cost.phases[at] })),
      lines: [{ name: "ink", text: "all four phases before", values: totals(draft.first.cost) }],
      describe: (device) => [plan.where(device), [...PHASES.map((phase, at) => [phase, ms(cost.phases[at][device])]), ["all four", ms(totals(cost)[device])]]] }),
    columns({ ...shared, title: "Memory of each device after the changes", unit: "bytes", series: MEMORY.map((text, at) => ({ name: "memory-" + at, text, values: cost.memory[at] })),
      lines: heavy ? [{ name: "warn", text: "limit", values: plan.task.limit }] : [],
      describe: (device) => [plan.where(device), [...MEMORY.map((part, at) => [part, bytes(cost.memory[at][device])]), ["limit", bytes(plan.limit[device])]]] })];
  }

  function pieceFigure() {
    if (!chosen) return el("p", { class: "hint" }, "Choose a piece on the board to see the step with it on each device.");
    const block = board.plan.pieces.indexOf(chosen);
    const title = `${draft.label(chosen)}: ${blockText(board.plan, block)}`;
    if (!steps) return el("p", { class: "hint" }, `${title} lies on ${plural(chosen.devices.length, "device")} at once. This page moves copies only if every device has one of the whole table.`);
    const { step } = draft.now.cost;
    const home = chosen.devices.length === 1 ? chosen.devices[0] : null;
    const button = (text, can, act) => el("button", { type: "button", disabled: !can, onclick: act }, text);
    const controls = el("div", { class: "controls" }, button("Cut columns (C)", draft.halves(chosen, "columns"), () => cut("columns")),
      button("Cut rows (R)", draft.halves(chosen, "rows"), () => cut("rows")), button("Join (J)", draft.joint(chosen), join), button("Copy to all devices (A)", draft.copyable(chosen), copy),
      moveTo(home, plan.devices, (device) => drop(chosen, device)));
    const change = steps.map((value) => (Math.abs(value - step) <= 1e-9 * step ? 0 : value - step));
    const blocked = range(plan.devices).map((device) => full(chosen, device));
    const top = most(change.map(Math.abs)) || step;
    const series = [["phase-1", "longer", (at) => (blocked[at] ? 0 : Math.max(0, change[at]))], ["memory-1", "shorter", (at) => (blocked[at] ? 0 : Math.max(0, -change[at]))],
      ["warn", "too little memory", (at) => (blocked[at] ? top / 12 : 0)]].map(([name, text, value]) => ({ name, text, values: range(plan.devices).map(value) }));
    return columns({ title, note: `${whyHere(change, blocked, home, plan, step)} Each column is the step's change in ms with the piece on that device; choose one to move the piece there.`, unit: "ms", series,
      order: range(plan.devices), perHost: plan.task.perHost, height: 170, controls, describe: (device) => weigh(chosen, device),
      act: (device) => device !== home && drop(chosen, device) });
  }

  const act = (text, keys, onclick) => el("button", { type: "button", title: keys, "aria-keyshortcuts": keys, onclick }, text);
  const undo = act("Undo", "Control+Z", () => back("undo"));
  const redo = act("Redo", "Control+Y", () => back("redo"));
  const start = el("button", { type: "button", onclick: () => { draft.change(draft.first.pieces, draft.first.what); done(null); } }, "Back to the plan");
  const save = el("button", { type: "button", onclick: () => download(draft, plan) }, "Save as plan");
  const place = section("whatif", "What if?", whatIfIntro(plan), el("div", { class: "whatif-bar" }, parts.figures, el("div", { class: "controls" }, undo, redo, start, save, parts.said), parts.broken),
    board.node(), parts.piece, parts.devices);
  place.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select") || event.altKey) return;
    const key = event.key.toLowerCase();
    const control = event.ctrlKey || event.metaKey;
    const found = control ? { z: () => back(event.shiftKey ? "redo" : "undo"), y: () => back("redo") }[key] : { c: () => cut("columns"), r: () => cut("rows"), j: join, a: copy }[key];
    if (!found) return;
    event.preventDefault();
    board.lower();
    found();
  });
  done(null);
  return place;
}

function whatIfIntro(plan) {
  return `Drag a piece, cut it or join it: ${plan.whatIf.costModel} prices the step at once, as in a search. The column chart shows why a piece lies where it does. ` +
    "Tiers keep their cuts, and tables with copies on some devices stay as they are. Cuts halve a piece, as far as this page has prices.";
}

// Whether another device would be better for the chosen piece, in a sentence.
function whyHere(change, blocked, home, plan, step) {
  const open = range(plan.devices).filter((device) => device !== home && !blocked[device]);
  const here = home === null ? "Every device has a copy." : `It lies on device ${home}.`;
  const there = home === null ? "With one copy" : "Anywhere else";
  if (!open.length) return `${here} ${plan.devices > 1 ? "No other device has room for it" : "There is no other device"}.`;
  const best = open.reduce((least, device) => (change[device] < change[least] ? device : least), open[0]);
  if (change[best] > 0) return `${here} ${there} the step gets longer by at least ${percent(change[best] / step, 2)}.`;
  if (change[best] === 0) return `${here} ${there} the step gets no shorter; on ${plural(open.filter((at) => change[at] === 0).length, "device")} it stays the same.`;
  return `${here} On device ${best}${home === null ? " alone" : ""} the step would be ${percent(-change[best] / step, 2)} shorter.`;
}

function moveTo(home, devices, move) {
  const input = el("input", { type: "number", min: 0, max: devices - 1, step: 1, value: home === null ? 0 : home, class: "rank" });
  const go = () => {
    const device = Number(input.value);
    if (input.value !== "" && Number.isInteger(device) && device >= 0 && device < devices && device !== home) move(device);
  };
  input.addEventListener("keydown", (event) => event.key === "Enter" && go());
  return el("label", {}, el("span", {}, "Move to device"), input, el("button", { type: "button", onclick: go }, "Move"));
}

async function download(draft, plan) {
  const url = URL.createObjectURL(new Blob([await draft.file()], { type: "application/json" }));
  el("a", { href: url, download: `${plan.name}-by-hand.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
