// Times that tuning measured: each plan promised (ring) and measured (disc), round by round, against the best so far and the floor.

function tuningSection(plan) {
  const { tuning } = plan;
  const interval = ([low, high]) => `${ms(low)} to ${ms(high)}`;
  const facts = [["measured", ms(tuning.measuredMs)], ["95% interval", interval(tuning.intervalMs)], ["before tuning", ms(tuning.firstMs)],
    ["95% interval before", interval(tuning.firstIntervalMs)], ["floor", ms(tuning.floorMs)], ["above the floor", signed(tuning.measuredMs / tuning.floorMs - 1)]];
  const rows = tuning.trials.map(([name, round, promised, measured, accepted], at) => [`${at + 1}. ${name}`, integer(round), ms(promised), ms(measured), accepted ? "taken" : ""]);
  return section("tuning", "Tuning", "The measured plans in order. Kernels are measured, links are predicted. The floor is the smallest total over the devices of any plan.",
    el("dl", { class: "facts row" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    tuning.trials.length ? tuningFigure(tuning) : null,
    table(["plan", "round", "promised", "measured", "best so far"], rows, { caption: "Plans that were measured" }));
}

function tuningFigure({ trials, floorMs }) {
  const height = 220;
  const values = trials.flatMap(([, , promised, measured]) => [promised, measured]).concat(floorMs);
  const least = values.reduce((low, value) => Math.min(low, value)) * 0.98;
  const top = most(values) * 1.01 || 1;
  const draw = (available) => {
    const left = 56;
    const pitch = clamp((available - left - 8) / trials.length, 8, 60);
    const width = Math.max(available, Math.ceil(left + 8 + pitch * trials.length));
    const bottom = height - 24;
    const right = left + pitch * trials.length;
    const y = (value) => bottom - ((value - least) / (top - least)) * (bottom - 8);
    const points = (column) => trials.map((trial, at) => [left + (at + 0.5) * pitch, y(trial[column])]);
    const stems = points(2).map(([x, from], at) => `M${x.toFixed(1)} ${from.toFixed(1)}V${y(trials[at][3]).toFixed(1)}`).join("");
    const taken = points(3).filter((_, at) => trials[at][4]);
    const best = taken.map(([x, at], index) => `${index ? "H" + x.toFixed(1) + "V" : "M" + x.toFixed(1) + " "}${at.toFixed(1)}`).join("");
    const cursor = svg("rect", { class: "cursor", y: 4, height: bottom - 4, width: pitch, visibility: "hidden" });
    const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => least + share * (top - least));
    const labels = tickLabels(marks, "ms");
    const grid = svg("g", { class: "grid" }, marks.map((value, at) => [svg("line", { x1: left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, labels[at])]));
    return {
      node: svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, grid, cursor,
        svg("path", { class: "bound", d: `M${left} ${y(floorMs).toFixed(1)}H${right}` }), svg("path", { class: "curve", d: taken.length ? `${best}H${right}` : "" }),
        svg("path", { class: "stem", d: stems }), svg("path", { class: "ring stroke-phase-0", d: circles(points(2), 4) }), svg("path", { class: "fill-phase-0", d: circles(points(3), 4) }),
        trials.map(([, round], at) => (at && trials[at - 1][1] === round ? null : svg("text", { class: "name", x: left + at * pitch + 2, y: height - 6 }, String(round))))),
      count: trials.length,
      at: (x) => (x < left || x >= right ? null : Math.floor((x - left) / pitch)),
      centre: (at) => points(3)[at],
      mark: (at) => {
        cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
        if (at !== null) cursor.setAttribute("x", left + at * pitch);
      },
    };
  };
  const describe = (at) => {
    const [name, round, promised, measured, accepted] = trials[at];
    return [name, [["round", integer(round)], ["promised", ms(promised)], ["measured", ms(measured)], ["difference", signed(measured / promised - 1)], ["best so far", accepted ? "yes" : "no"]]];
  };
  return figure({ title: "Promised (ring) and measured (disc) step by round (ms); the line is the best so far, the straight one the floor", draw, describe, className: "wide" });
}
