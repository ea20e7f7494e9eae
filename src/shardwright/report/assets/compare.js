// Several plans side by side, and the data that moves when one replaces another.

function compareSection(plans) {
  const [first] = plans;
  const against = (value, base) => (base ? ` (${signed(value / base - 1)})` : "");
  const measures = [["step, ms", (plan) => plan.stepMs.toFixed(3) + (plan === first ? "" : against(plan.stepMs, first.stepMs))],
    ["proven bound, ms", (plan) => (plan.boundMs === null ? "–" : plan.boundMs.toFixed(3))], ["gap to it", (plan) => percent(plan.gap)], ["the bound holds", (plan) => (plan.boundMs === null ? "–" : el("span", { class: "words" }, plan.boundScope))],
    ...PHASES.map((phase, at) => [`${phase}, ms`, (plan) => plan.phaseMax[at].toFixed(3) + (plan === first ? "" : against(plan.phaseMax[at], first.phaseMax[at]))]), ["embedding cost, ms", (plan) => plan.embeddingMs.toFixed(3)],
    ["fullest device", (plan) => used(plan.fullest)], ["total memory", (plan) => bytes(sum(plan.held))],
    ...plans.reduce((links, plan) => (plan.traffic.length > links.length ? plan.traffic : links), []).map((link) => [`${link.pass}, ${link.link}`,
      (plan) => bytes((plan.traffic.find((one) => one.pass === link.pass && one.link === link.link) || { sent: 0 }).sent)]),
    ["strategy", (plan) => plan.strategy || "–"], ["cost model", (plan) => plan.costModel || "–"], ["runs on", (plan) => plan.runsOn.join(", ") || "–"], ["search, s", (plan) => (plan.searchS === null ? "–" : plan.searchS.toFixed(2))]];
  const different = plans.some((plan) => plan.task !== first.task) ? " The plans are for different tasks: compare their times with care." : "";
  const models = plans.some((plan) => plan.costModel !== first.costModel) ? " Different cost models predicted them." : "";
  return section("compare", "Side by side", `Changes are against ${first.name}, the first plan.${different}${models}`,
    table(["", ...plans.map((plan) => plan.name)], measures.map(([name, read]) => [name, ...plans.map(read)]), { first: 40, caption: "Plans side by side" }));
}

// Plans on clusters of several sizes: samples a second of each, and what no plan there exceeds.
function scaleSection(plans) {
  const rate = (plan, time) => (time ? (plan.task.batch / time) * 1e3 : 0);
  const order = range(plans.length).sort((a, b) => plans[a].devices - plans[b].devices || a - b);
  const base = plans[order[0]];
  const rates = plans.map((plan) => rate(plan, plan.stepMs));
  const bounded = plans.every((plan) => plan.boundMs);
  const [many, unit] = [[1e6, "Millions of samples"], [1e3, "Thousands of samples"], [1, "Samples"]].find(([size]) => most(rates) >= size) || [1, "Samples"];
  const describe = (at) => {
    const plan = plans[at];
    return [`${plan.name}: ${plural(plan.devices, "device")}`, [["samples a second", integer(rates[at])], ["at most", plan.boundMs ? integer(rate(plan, plan.boundMs)) : "–"],
      ["step", ms(plan.stepMs)], ["batch", integer(plan.task.batch)], ["of a device, against the first", percent(rates[at] / plan.devices / (rates[order[0]] / base.devices))]]];
  };
  return section("scale", "Throughput over devices", "Samples a second of each plan, by its number of devices.",
    columns({ title: `${unit} a second over devices`, unit: "samples", series: [{ name: "phase-0", text: "this plan", values: rates.map((value) => value / many) }], order, perHost: 1, labels: plans.map((plan) => plan.devices), describe,
      lines: bounded ? [{ name: "ink", text: "no plan on so many devices exceeds", values: plans.map((plan) => rate(plan, plan.boundMs) / many) }] : [] }));
}

function changeSection(plans, plan) {
  const [first] = plans;
  const { change } = plan;
  const total = change.movedBytes + change.keptBytes;
  const lists = [["new", change.added], ["gone", change.removed], ["of another shape, and start anew", change.changed]].filter(([, names]) => names.length);
  const facts = [["moves", `${bytes(change.movedBytes)} (${percent(total ? change.movedBytes / total : 0)})`], ["stays", bytes(change.keptBytes)],
    ["tables that move", integer(change.tables.length)], change.madeBytes && ["starts anew", bytes(change.madeBytes)],
    ["step", `${ms(first.stepMs)} → ${ms(plan.stepMs)}`], change.newDevices && ["new devices", integer(change.newDevices)], change.goneDevices && ["devices gone", integer(change.goneDevices)]].filter(Boolean);
  const received = new Array(plan.devices).fill(0);
  const counts = new Array(plan.devices).fill(0);
  change.moves.forEach(([, device, size]) => { received[device] += size; counts[device]++; });
  const rows = change.tables.map(([index, before, after, moved, kept]) => [plan.names[index], before, after, bytes(moved), bytes(kept)]);
  return section("change", `From ${first.name} to ${plan.name}`, "Weights and optimizer state that devices must fetch when the second plan replaces the first.",
    el("dl", { class: "facts row" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    lists.map(([what, names]) => el("p", {}, `Tables that are ${what}: ${names.slice(0, 12).join(", ")}${names.length > 12 ? ` and ${integer(names.length - 12)} more` : ""}.`)),
    change.moves.length ? columns({ title: "Bytes that each device receives", unit: "bytes", order: range(plan.devices), perHost: plan.task.perHost,
      series: [{ name: "phase-1", values: received }], describe: (device) => [plan.where(device), [["receives", bytes(received[device])], ["of", plural(counts[device], "table")]]], height: 190 }) : null,
    rows.length ? table(["table", "before", "after", "moves", "stays"], rows, { numeric: 3, caption: "Tables that move" }) : el("p", {}, "Nothing moves."));
}

// Lets the matrix show what each device receives.
function withReceived(plan) {
  if (!plan.change) return plan;
  const found = new Map(plan.change.moves.map(([table, device, size]) => [table * plan.devices + device, size]));
  plan.received = (_, table, device) => found.get(table * plan.devices + device) || 0;
  return plan;
}
