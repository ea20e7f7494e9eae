// The matrix, and the tables as a list.

function tableSection(plan) {
  const { rows, dim, pooling, features, pooled, dtype } = plan.task.tables;
  const gain = plan.cells ? plan.cells.stepMs : null;
  const order = range(plan.names.length).sort((a, b) => (gain ? gain[b] - gain[a] : 0) || plan.bytesOf[b] - plan.bytesOf[a]);
  const heads = ["table", "sharded", "rows", "dim", "lookups a sample", "devices", "total bytes", ...(gain ? ["step without it, ms"] : [])];
  const cells = order.map((at) => [plan.names[at], plan.blocks.types[at], integer(rows[at]), `${dim[at]}${dtype[at] === "fp32" ? "" : ` ${dtype[at]}`}`,
    `${pooling[at]}${features[at] ? ` (${plural(features[at], "feature")})` : ""}${pooled[at] ? "" : ", not pooled"}`, rankText([...plan.row(at).keys()], plan.devices), bytes(plan.bytesOf[at]), ...(gain ? [plainMs(-gain[at])] : [])]);
  const values = order.map((at) => [plan.names[at], plan.blocks.types[at], rows[at], dim[at], pooling[at], plan.row(at).size, plan.bytesOf[at], ...(gain ? [-gain[at]] : [])]);
  const kinds = KINDS.map((kind) => [kind, plan.blocks.types.filter((type) => type === kind).length]).filter(([, count]) => count);
  const intro = `${plural(plan.names.length, "table")} on ${plural(plan.devices, "device")}: ${kinds.map(([kind, count]) => `${integer(count)} ${kind}`).join(", ")}. ` +
    "Rows are tables, columns are devices. If there is room, a cell names its block of the table.";
  return section("tables", "Tables and devices", intro, new Matrix(plan).node(),
    el("details", {}, el("summary", {}, "The tables as a list"), table(heads, cells, { first: 15, numeric: 2, caption: "Tables of the plan", values })),
    plan.torchrec && el("details", {}, el("summary", {}, "For TorchRec"), el("p", {}, plan.torchrec.how), el("pre", { tabindex: "0" }, plan.torchrec.code)));
}
