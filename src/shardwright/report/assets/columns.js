// Stacked columns, one for each device. A series is one path, so that a thousand devices are a handful of elements.

const rectangle = (x, y, width, height) => (height > 0 ? `M${x} ${y}h${width}v${height}h${-width}z` : "");

function stacked(series, order, place, y) {
  const base = new Float64Array(order.length);
  return series.map(({ name, values }) => {
    let path = "";
    order.forEach((device, at) => {
      const [x, width] = place(at);
      const low = y(base[at]);
      base[at] += values[device];
      const high = y(base[at]);
      path += rectangle(x.toFixed(2), high.toFixed(2), width.toFixed(2), low - high);
    });
    return svg("path", { class: "fill-" + name, d: path });
  });
}

// A line of steps over the columns: a limit, or what another plan takes.
function steps(line, order, place, y, pitch) {
  let path = "";
  order.forEach((device, at) => {
    const value = typeof line.values === "number" ? line.values : line.values[device];
    const x = place(at)[0] - (pitch - place(at)[1]) / 2;
    path += `${at ? "L" : "M"}${x.toFixed(2)} ${y(value).toFixed(2)}h${pitch.toFixed(2)}`;
  });
  return svg("path", { class: "rule " + line.name, d: path });
}

function hostMarks(order, perHost, place, pitch, bottom, sorted, labels = null) {
  const group = svg("g", { class: "grid" });
  const hosts = perHost > 1 && order.length > perHost && !sorted;
  const every = hosts ? perHost : Math.max(1, Math.ceil(28 / pitch));
  const skip = hosts ? Math.max(1, Math.ceil(52 / (pitch * perHost))) : 1;
  for (let at = 0; at < order.length; at += every) {
    const x = place(at)[0] - (pitch - place(at)[1]) / 2;
    if (hosts && at) group.append(svg("line", { class: "host", x1: x, x2: x, y1: 4, y2: bottom + 5 }));
    if ((at / every) % skip) continue;
    const text = hosts ? `host ${at / perHost}` : String(labels ? labels[order[at]] : order[at]);
    const middle = x + (pitch * (hosts ? Math.min(perHost, order.length - at) : 1)) / 2;
    group.append(svg("text", { x: hosts ? x + 2 : middle, y: bottom + 16, "text-anchor": hosts ? "start" : "middle" }, text));
  }
  return group;
}

// series: [{name, text, values}], lines: [{name, text, values}], order: devices from left to right, labels: what to write below each
function columns({ title, note, unit, series, lines = [], order, perHost, sorted = false, labels = null, describe, act, controls, height = 240 }) {
  const least = order.length > 1024 ? 1 : 4;
  const draw = (available) => {
    const left = unit === "bytes" ? 66 : 48;
    const pitch = clamp((available - left - 8) / order.length, least, 150);
    const width = Math.max(available, Math.ceil(left + 8 + pitch * order.length));
    const bottom = height - 24;
    const totals = order.map((device) => sum(series.map((one) => one.values[device])));
    const rules = lines.flatMap((line) => (typeof line.values === "number" ? [line.values] : line.values));
    const top = Math.max(most(totals), most(rules)) * 1.04 || 1;
    const y = (value) => bottom - (value / top) * (bottom - 8);
    const gap = pitch > 100 ? 36 : pitch > 40 ? 10 : pitch > 12 ? 3 : pitch > 5 ? 1 : 0;
    const place = (at) => [left + at * pitch + gap / 2, pitch - gap];
    const cursor = svg("rect", { class: "cursor", y: 4, height: bottom - 4, width: pitch, visibility: "hidden" });
    const node = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      gridlines(top, unit, { left, right: left + pitch * order.length, y }), cursor,
      stacked(series, order, place, y), lines.map((line) => steps(line, order, place, y, pitch)),
      hostMarks(order, perHost, place, pitch, bottom, sorted, labels));
    return {
      node,
      count: order.length,
      at: (x, height) => (x < left || x >= left + pitch * order.length || height > bottom + 20 ? null : Math.floor((x - left) / pitch)),
      centre: (at) => [left + (at + 0.5) * pitch, y(totals[at])],
      mark: (at) => {
        cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
        if (at !== null) cursor.setAttribute("x", left + at * pitch);
      },
    };
  };
  const entries = [...series.map((one) => [one.name, one.text]), ...lines.map((one) => [one.name, one.text, "dash"])].filter(([, text]) => text);
  return figure({ title, note, entries, draw, describe: (at) => describe(order[at]), act: act && ((at) => act(order[at])), controls });
}

// A small picture of one value per device, the largest in full colour.
function strip(values, chosen, name) {
  const top = most(values) || 1;
  const width = 100 / values.length;
  const path = (wanted) => values.map((value, at) => (wanted(at) ?
    rectangle((at * width).toFixed(3), (32 - (32 * value) / top).toFixed(2), (width * (values.length > 200 ? 1 : 0.86)).toFixed(3), (32 * value) / top) : "")).join("");
  return svg("svg", { class: "strip", viewBox: "0 0 100 32", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("path", { class: "faded fill-" + name, d: path((at) => at !== chosen) }), svg("path", { class: "fill-" + name, d: path((at) => at === chosen) }));
}
