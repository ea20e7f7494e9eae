// The first things to know: how long a step takes, how far that is from the best possible, and where the time goes.

function section(id, title, intro, ...children) {
  return el("section", { id, "aria-labelledby": id + "-title" }, el("h2", { id: id + "-title" }, title), intro && el("p", { class: "intro" }, intro), children);
}

function summarySection(plans, plan) {
  const { task } = plan;
  const verdict = plan.boundMs === null ? "No lower bound was proven for this task, so a better plan may exist." :
    `By the same cost model, ${ms(plan.boundMs)} is a bound ${plan.boundScope}${plan.gap === null ? "" : `: this one is at most ${percent(plan.gap)} above the best possible`}.`;
  const facts = [["strategy", plan.strategy || "–"], ["runs on", plan.runsOn.join(", ") || "–"], ["cost model", plan.costModel || "–"], ["its origin", plan.modelOrigin || "–"], ["seed", plan.seed === null ? "–" : String(plan.seed)], ["report", plan.made], ["search", plan.searchS === null ? "–" : `${plan.searchS.toFixed(2)} s${plan.searchEnd && `, ${plan.searchEnd}`}`],
    ["devices", task.hosts > 1 ? `${task.hosts} hosts × ${task.perHost} ${task.device}` : `${task.perHost} × ${task.device}`], ["tables", integer(plan.names.length)],
    ["batch", integer(task.batch) + " samples"], ["optimizer", task.optimizer], ["embedding cost", ms(plan.embeddingMs)], ["fullest device", used(plan.fullest) + " of its memory"],
    ...Object.entries(task.hidden).map(([kind, time]) => [`dense layers hide ${kind}`, ms(time)])];
  return el("section", { id: "summary", "aria-labelledby": "summary-title" }, el("h2", { id: "summary-title", class: "unseen" }, "Summary"),
    el("p", { class: "verdict" }, plan.verdict),
    el("div", { class: "hero" },
      el("div", { class: "figure-of-merit" }, el("p", { class: "label" }, "Predicted time of a step"), el("p", { class: "big" }, ms(plan.stepMs)), el("p", {}, verdict)),
      el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))))),
    plan.notes.map((note) => el("p", { class: "note" }, note)), stepBars(plans, plan));
}

// One bar for each plan: the maxima over devices of the four phases, which add up to the step; a mark at the bound.
function stepBars(plans, chosen) {
  const draw = (width) => {
    const [row, top, right] = [52, 4, width - 12];
    const end = most(plans.map((plan) => Math.max(plan.stepMs, plan.boundMs || 0))) * 1.02 || 1;
    const x = (value) => (value / end) * right;
    const height = top + row * plans.length + 26;
    const marks = plans.map((plan, at) => {
      const y = top + row * at;
      let from = 0;
      const parts = plan.phaseMax.map((value, phase) => {
        const part = svg("rect", { class: "seam fill-phase-" + phase, x: x(from), y: y + 19, width: x(value), height: 22 });
        from += value;
        return part;
      });
      const bound = plan.boundMs !== null && ["halo", "bound"].map((name) => svg("path", { class: name, d: `M${x(plan.boundMs)} ${y + 15}v30` }));
      const text = `${plan.name}: ${ms(plan.stepMs)}${plan.boundMs === null ? "" : `, bound ${ms(plan.boundMs)}`}`;
      return svg("g", {}, svg("text", { class: plan === chosen ? "name strong" : "name", x: 0, y: y + 12 }, text), parts, bound);
    });
    const values = ticks(end, width < 500 ? 3 : 6);
    const labels = tickLabels(values, "ms");
    const axis = svg("g", { class: "grid" }, values.map((value, at) => [svg("line", { x1: x(value), x2: x(value), y1: top + 16, y2: height - 22 }),
      svg("text", { x: x(value), y: height - 8, "text-anchor": at ? "middle" : "start" }, labels[at])]));
    return { node: svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, axis, marks), count: plans.length,
      at: (_, y) => (y < top || y >= top + row * plans.length ? null : Math.floor((y - top) / row)), centre: (at) => [x(plans[at].stepMs) / 2, top + row * at + 30], mark: () => {} };
  };
  const describe = (at) => [plans[at].name, [...PHASES.map((phase, index) => [phase, ms(plans[at].phaseMax[index])]), ["step", ms(plans[at].stepMs)],
    ["proven bound", ms(plans[at].boundMs)], ["gap", percent(plans[at].gap)]]];
  const note = "A step waits in every phase for its slowest device: the bar is the sum of the four maxima. The mark is the proven bound.";
  return figure({ title: "Step time against the proven bound (ms)", note, entries: [...PHASES.map((phase, at) => ["phase-" + at, phase]),
    plans.some((plan) => plan.boundMs !== null) && ["ink", "proven bound", "upright"]].filter(Boolean), draw, describe, className: "wide" });
}
