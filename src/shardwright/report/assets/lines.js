// The access curve with its tiers, and predicted beside measured times.

const TIER_FILLS = ["phase-1", "phase-0", "memory-1", "kind-5", "kind-6"];

// How much of a table's lookups its hottest rows take, rows on a logarithmic scale.
function accessCurve(curve, name) {
  const start = Math.min(1, curve.rows[1]);
  const end = curve.rows[curve.rows.length - 1];
  const height = 260;
  const draw = (width) => {
    const [left, bottom, right] = [48, height - 40, width - 12];
    const span = Math.log(end / start) || 1;
    const x = (rows) => left + ((right - left) * Math.log(Math.max(rows, start) / start)) / span;
    const y = (share) => bottom - share * (bottom - 12);
    const points = curve.rows.map((rows, at) => [x(rows), y(curve.share[at])]).slice(1);
    const line = "M" + points.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L");
    const bands = curve.tiers.map((tier, at) => {
      const [from, to] = [x(tier.rows[0] || start), x(tier.rows[1])];
      const wide = to - from > 7 * tier.name.length;
      return [
        svg("rect", { class: `band fill-${TIER_FILLS[at % 5]}`, x: from, width: Math.max(0, to - from), y: 12, height: bottom - 12 }),
        wide && svg("text", { class: "name", x: (from + to) / 2, y: bottom - 8, "text-anchor": "middle" }, tier.name),
        at ? svg("line", { class: "edge", x1: from, x2: from, y1: 12, y2: bottom }) : null,
      ];
    });
    const powers = range(Math.floor(Math.log10(end / start) + 1e-9) + 1).map((power) => start * 10 ** power);
    const sparse = Math.ceil(44 / ((right - left) / Math.max(1, powers.length - 1)));
    const axis = svg("g", { class: "grid" },
      [0, 0.25, 0.5, 0.75, 1].map((share) => [svg("line", { x1: left, x2: right, y1: y(share), y2: y(share) }),
        svg("text", { x: left - 8, y: y(share) + 4, "text-anchor": "end" }, `${100 * share}%`)]),
      powers.filter((_, at) => at % sparse === 0).map((rows) => svg("text", { x: x(rows), y: bottom + 16, "text-anchor": "middle" }, shortCount(rows))),
      svg("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, "rows, hottest first (logarithmic)"));
    const dot = svg("circle", { class: "dot", r: 4.5, visibility: "hidden" });
    return {
      node: svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, bands, axis,
        svg("path", { class: "curve", d: line }), dot),
      count: points.length,
      at: (pointer) => (pointer < left - 4 || pointer > right + 4 ? null : nearest(points, pointer)),
      centre: (at) => points[at],
      mark: (at) => {
        dot.setAttribute("visibility", at === null ? "hidden" : "visible");
        if (at === null) return;
        dot.setAttribute("cx", points[at][0]);
        dot.setAttribute("cy", points[at][1]);
      },
    };
  };
  const describe = (at) => {
    const rows = curve.rows[at + 1];
    const tier = curve.tiers.find((one) => rows <= one.rows[1]) || curve.tiers[curve.tiers.length - 1];
    return [`${integer(rows)} hottest rows`, [["of all rows", percent(rows / end, 3)], ["of all lookups", percent(curve.share[at + 1])], ["tier", tier.name]]];
  };
  return figure({ title: `Lookups that the hottest rows of ${name} take (%)`, draw, describe });
}

const nearest = (points, pointer) => points.reduce((best, point, at) =>
  (Math.abs(point[0] - pointer) < Math.abs(points[best][0] - pointer) ? at : best), 0);
const shortCount = (value) => Intl.NumberFormat("en-US", { notation: "compact" }).format(value);

const circles = (points, radius) => points.map(([x, y]) =>
  `M${(x - radius).toFixed(1)} ${y.toFixed(1)}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0 ${-2 * radius} 0z`).join("");

// Predicted (ring) and measured (disc) time of each device.
function pairs({ title, predicted, measured, name, notComparable }) {
  const height = 190;
  const draw = (available) => {
    const left = 48;
    const pitch = clamp((available - left - 8) / predicted.length, 4, 150);
    const width = Math.max(available, Math.ceil(left + 8 + pitch * predicted.length));
    const bottom = height - 24;
    const top = Math.max(most(predicted), most(measured)) * 1.08 || 1;
    const y = (value) => bottom - (value / top) * (bottom - 8);
    const points = (values) => values.map((value, at) => [left + (at + 0.5) * pitch, y(value)]);
    const radius = clamp(pitch / 3, 1.4, 5);
    const stems = points(predicted).map(([x, from], at) => `M${x.toFixed(1)} ${from.toFixed(1)}V${y(measured[at]).toFixed(1)}`).join("");
    const cursor = svg("rect", { class: "cursor", y: 4, height: bottom - 4, width: pitch, visibility: "hidden" });
    return {
      node: svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
        gridlines(top, "ms", { left, right: left + pitch * predicted.length, y }), cursor, svg("path", { class: "stem", d: stems }),
        svg("path", { class: "ring stroke-" + name, d: circles(points(predicted), radius) }),
        svg("path", { class: "fill-" + name, d: circles(points(measured), radius) }),
        hostMarks(range(predicted.length), 1, (at) => [left + at * pitch, pitch], pitch, bottom, false)),
      count: predicted.length,
      at: (x, height) => (x < left || x >= left + pitch * predicted.length || height > bottom + 20 ? null : Math.floor((x - left) / pitch)),
      centre: (at) => points(measured)[at],
      mark: (at) => {
        cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
        if (at !== null) cursor.setAttribute("x", left + at * pitch);
      },
    };
  };
  const describe = (at) => [`device ${at}`, [["predicted", ms(predicted[at])], ["measured", ms(measured[at])],
    ["difference", predicted[at] && !notComparable ? signed(measured[at] / predicted[at] - 1) : "–"]]];
  return figure({ title, draw, describe });
}
