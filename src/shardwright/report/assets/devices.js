// Time and memory of every device, and the device that each phase waits for.

function deviceSection(plan, base) {
  const state = { sorted: false };
  const place = el("div", {});
  const describe = (device) => [plan.where(device), [...PHASES.map((phase, at) => [phase, ms(plan.phases[at][device])]), ["all four", ms(plan.totals[device])],
    ["tables", integer(tablesOn(plan)[device])]]];
  const full = (device) => [plan.where(device), [...MEMORY.map((part, at) => [part, bytes(plan.memory[at][device])]),
    ["all", `${bytes(plan.held[device])} (${percent(plan.held[device] / plan.limit[device])})`], ["limit", bytes(plan.limit[device])]]];
  const waits = PHASES.map((phase, at) => `${phase}: device ${plan.bottlenecks[at].rank}`).join(" · ");
  const far = plan.fullest < 0.2;
  const same = base && base !== plan && base.devices === plan.devices;
  const build = () => {
    const order = range(plan.devices);
    if (state.sorted) order.sort((a, b) => plan.totals[b] - plan.totals[a] || a - b);
    const shared = { order, perHost: plan.task.perHost, sorted: state.sorted };
    place.replaceChildren(
      columns({ ...shared, title: "Predicted time of each device (ms)", note: `Slowest by phase – ${waits}.`, unit: "ms", describe,
        series: PHASES.map((text, at) => ({ name: "phase-" + at, text, values: plan.phases[at] })),
        lines: same ? [{ name: "ink", text: `all four phases in ${base.name}`, values: base.totals }] : [] }),
      columns({ ...shared, title: "Memory of each device", note: far ? `Weights, optimizer state and the buffers of one batch; the fullest device holds ${used(plan.fullest)} of its limit, which is above the picture.` :
          "Weights, optimizer state and the buffers of one batch, against the limit.", unit: "bytes", describe: full,
        series: MEMORY.map((text, at) => ({ name: "memory-" + at, text, values: plan.memory[at] })),
        lines: far ? [] : [{ name: "warn", text: "limit", values: plan.task.limit }] }));
  };
  const order = el("button", { type: "button", "aria-pressed": "false", onclick: () => {
    state.sorted = !state.sorted;
    order.setAttribute("aria-pressed", String(state.sorted));
    build();
  } }, "Slowest device first");
  build();
  return section("devices", "Devices", null, plan.devices > 1 && el("div", { class: "controls" }, order), place, deviceTable(plan));
}

function tablesOn(plan) {
  if (!plan.tableCounts) {
    plan.tableCounts = new Array(plan.devices).fill(0);
    plan.names.forEach((_, table) => plan.row(table).forEach((_, device) => plan.tableCounts[device]++));
  }
  return plan.tableCounts;
}

// The same figures as a table, made when it is opened.
function deviceTable(plan) {
  const details = el("details", {}, el("summary", {}, "Values as a table"));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) {
      const heads = ["device", ...PHASES.map((phase) => phase + ", ms"), "all four, ms", "tables", ...MEMORY, "limit"];
      const rows = range(plan.devices).map((device) => [String(device), ...plan.phases.map((times) => times[device].toFixed(3)), plan.totals[device].toFixed(3),
        integer(tablesOn(plan)[device]), ...plan.memory.map((part) => bytes(part[device])), bytes(plan.limit[device])]);
      details.append(table(heads, rows, { first: 32, caption: "Time and memory of each device" }));
    }
  });
  return details;
}

function bottleneckSection(plan) {
  const intro = plan.cells ? `In each phase, a step waits for one device. The first number beside a table is the time that the device's phase would save without it (cost model ${plan.cells.costModel}), ` +
    "the number after the arrow is the time that the step would save, since it then waits for the next slowest device. Tables share a fused kernel and the links, so their times do not add up to the device's." :
    "In each phase, a step waits for one device.";
  return section("bottlenecks", "What a step waits for", intro, el("div", { class: "cards" }, plan.bottlenecks.map((found, phase) => card(plan, found, phase))));
}

function card(plan, found, phase) {
  const top = most(found.tables.map(([, value]) => value)) || 1;
  const rows = found.tables.map(([index, device, step]) => el("li", {},
    el("span", { class: "table-name", title: plan.names[index] }, plan.names[index]), bar(device / top, "phase-" + phase),
    el("span", { class: "number" }, plainMs(device), el("span", { class: "quiet" }, ` → ${plainMs(step)}`))));
  const ratio = found.meanMs ? found.ms / found.meanMs : 0;
  const ahead = ratio < 1.005 ? "; all devices take about as long" : `, ${ratio.toFixed(2)} × the mean device`;
  return el("article", { class: "card" },
    el("h3", {}, swatch("phase-" + phase), PHASES[phase]),
    el("p", { class: "middling" }, ms(found.ms), el("span", { class: "quiet" }, ` ${percent(plan.stepMs ? found.ms / plan.stepMs : 0, 0)} of the step`)),
    el("p", {}, found.ms ? `${plan.where(found.rank)}${ahead}` : "no device spends time on it"),
    strip(plan.phases[phase], found.rank, "phase-" + phase),
    rows.length ? el("ol", { class: "culprits", "aria-label": `Tables that device ${found.rank} is busy with, ms` }, rows) : null,
    rows.length ? el("p", { class: "quiet" }, `Sum over all tables, each left out alone: ${ms(found.aloneMs)} of ${ms(found.ms)}.`) : null);
}
