// Painting the visible part of the matrix of tables × devices. A cell shows which block of the table lies on the device.

const HEAD = 24;
const STEPS = 48;

function rampColours() {
  const stops = range(5).map((at) => colour("ramp-" + at)).map((hex) => [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16)));
  return range(STEPS).map((step) => {
    const place = (step / (STEPS - 1)) * 4;
    const low = Math.min(3, Math.floor(place));
    return `rgb(${[0, 1, 2].map((c) => Math.round(stops[low][c] + (place - low) * (stops[low + 1][c] - stops[low][c]))).join(",")})`;
  });
}

// What a cell's colour means: value(cell, table, device) → number, or a class of the palette.
function colouring(plan, mode) {
  if (mode === "kind") return { name: "sharding type", kind: (table) => KINDS.indexOf(plan.blocks.types[table]) };
  if (mode === "change") return { name: "bytes that the device receives", value: plan.received };
  if (mode === "bytes") return { name: "memory on the device, buffers included", value: (cell) => cell.bytes };
  return { name: "ms saved without the table", value: (cell) => Math.max(0, sum(cell.ms)) };
}

function highest(plan, how) {
  let top = 0;
  plan.names.forEach((_, table) => plan.row(table).forEach((cell, device) => { top = Math.max(top, how.value(cell, table, device)); }));
  return top;
}

// view: {plan, order, how, top, labels, cell: [width, height], theme}; the canvas shows from (left, top) on.
function paint(canvas, view, scroll, size) {
  const scale = devicePixelRatio || 1;
  const [width, height] = size;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.fillStyle = view.theme.panel;
  pen.fillRect(0, 0, width, height);
  pen.font = view.theme.font;
  pen.textBaseline = "middle";
  const [cellWidth, cellHeight] = view.cell;
  const rows = [Math.floor(scroll.top / cellHeight), Math.min(view.order.length, Math.ceil((scroll.top + height - HEAD) / cellHeight))];
  const ranks = [Math.floor(scroll.left / cellWidth), Math.min(view.plan.devices, Math.ceil((scroll.left + width - view.labels) / cellWidth))];
  for (let at = rows[0]; at < rows[1]; at++) paintRow(pen, view, at, ranks, HEAD + at * cellHeight - scroll.top, view.labels - scroll.left);
  paintHosts(pen, view, ranks, scroll, height);
  paintLabels(pen, view, rows, scroll, height);
  paintHead(pen, view, ranks, scroll, width);
}

function paintRow(pen, view, at, ranks, y, x0) {
  const table = view.order[at];
  const [width, height] = view.cell;
  const gap = height >= 8 ? 1 : 0;
  const glyph = width >= 22 && height >= 12;
  for (const [device, cell] of view.plan.row(table)) {
    if (device < ranks[0] || device >= ranks[1]) continue;
    const x = x0 + device * width;
    const box = [x + (width > 5 ? 0.5 : 0), y + gap / 2, width - (width > 5 ? 1 : 0), height - gap];
    const shade = shadeOf(view, cell, table, device);
    pen.fillStyle = shade;
    if (glyph) paintBlocks(pen, view, cell, table, box, shade);
    else pen.fillRect(...box);
  }
}

function shadeOf(view, cell, table, device) {
  if (view.how.kind) return view.theme.kinds[view.how.kind(table)];
  const value = view.how.value(cell, table, device);
  return view.top > 0 ? view.theme.ramp[Math.round(Math.sqrt(value / view.top) * (STEPS - 1))] : view.theme.ramp[0];
}

// The whole table as a pale box, the blocks as what they are of it.
function paintBlocks(pen, view, cell, table, [x, y, width, height], shade) {
  const { rows, columns } = view.plan.blocks;
  const whole = [view.plan.task.tables.rows[table], view.plan.task.tables.dim[table]];
  pen.fillStyle = shade;
  pen.globalAlpha = 0.28;
  pen.fillRect(x, y, width, height);
  pen.globalAlpha = 1;
  for (const block of cell.blocks) {
    const left = (width * columns[block][0]) / whole[1];
    const upper = (height * rows[block][0]) / whole[0];
    const wide = (width * columns[block][1]) / whole[1] - left;
    const high = Math.max(2, (height * rows[block][1]) / whole[0] - upper);
    pen.fillRect(x + left, y + Math.min(upper, height - high), wide, high);
  }
}

function paintHosts(pen, view, ranks, scroll, height) {
  const { perHost, hosts } = view.plan.task;
  if (hosts < 2) return;
  pen.fillStyle = view.theme.line;
  for (let rank = Math.ceil(ranks[0] / perHost) * perHost; rank <= ranks[1]; rank += perHost) {
    pen.fillRect(view.labels + rank * view.cell[0] - scroll.left - 0.5, HEAD - 6, 1, height);
  }
}

function paintLabels(pen, view, rows, scroll, height) {
  pen.fillStyle = view.theme.panel;
  pen.fillRect(0, 0, view.labels, height);
  if (view.cell[1] < 12) return;
  pen.fillStyle = view.theme.ink;
  pen.textAlign = "left";
  for (let at = rows[0]; at < rows[1]; at++) {
    pen.fillText(fitted(pen, view.plan.names[view.order[at]], view.labels - 10), 0, HEAD + (at + 0.5) * view.cell[1] - scroll.top);
  }
}

function paintHead(pen, view, ranks, scroll, width) {
  const { perHost, hosts } = view.plan.task;
  pen.fillStyle = view.theme.panel;
  pen.fillRect(0, 0, width, HEAD - 6);
  pen.fillStyle = view.theme.muted;
  const every = hosts > 1 ? perHost : 1;
  const apart = every * Math.ceil((hosts > 1 ? 48 : 22) / (every * view.cell[0]));
  pen.textAlign = hosts > 1 ? "left" : "center";
  for (let rank = Math.floor(ranks[0] / apart) * apart; rank < ranks[1]; rank += apart) {
    const x = view.labels + rank * view.cell[0] - scroll.left + (hosts > 1 ? 1 : view.cell[0] / 2);
    if (x >= view.labels) pen.fillText(hosts > 1 ? `host ${rank / perHost}` : String(rank), x, 8);
  }
  pen.textAlign = "left";
  pen.fillStyle = view.theme.panel;
  pen.fillRect(0, 0, view.labels, HEAD);
  pen.fillStyle = view.theme.muted;
  if (view.labels > 40) pen.fillText("table", 0, 8);
}

function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  const letters = [...text];
  let [low, high] = [0, letters.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (pen.measureText(letters.slice(0, middle).join("") + "…").width <= width) low = middle;
    else high = middle - 1;
  }
  return letters.slice(0, low).join("") + "…";
}

function canvasTheme() {
  const font = getComputedStyle(document.body).fontFamily;
  return { ramp: rampColours(), kinds: KINDS.map((_, at) => colour("kind-" + at)), panel: colour("panel"), ink: colour("ink"),
    muted: colour("muted"), line: colour("line"), font: `12px ${font}` };
}
