// The rules of a plan, as in `sharding.checking`: memory of devices and constraints of the task.

function shardingType(plan, pieces, table) {
  const [whole, wide] = [plan.task.tables.rows[table], plan.task.tables.dim[table]];
  if (plan.byHotness.has(table)) return "tiered";
  if (pieces.length === 1) return pieces[0].devices.length === 1 ? "table_wise" : "data_parallel";
  if (pieces.some((piece) => piece.devices.length > 1)) return "tiered";
  if (pieces.every((piece) => length(piece.rows) === whole)) return "column_wise";
  if (!pieces.every((piece) => length(piece.columns) === wide)) return "grid";
  return hostsOf(plan, pieces).size === 1 && plan.task.hosts > 1 ? "table_row_wise" : "row_wise";
}

const length = ([start, stop]) => stop - start;
const hostsOf = (plan, pieces) => new Set(pieces.map((piece) => Math.floor(piece.devices[0] / plan.task.perHost)));

function byTable(plan, pieces) {
  const found = plan.names.map(() => []);
  for (const piece of pieces) found[piece.table].push(piece);
  return found;
}

// One sentence for each rule that is broken.
function brokenRules(plan, pieces, cost) {
  const { limits, colocate, apart } = plan.whatIf;
  const tables = byTable(plan, pieces);
  const held = tables.map((list) => new Set(list.flatMap((piece) => piece.devices)));
  const broken = [];
  range(plan.devices).forEach((device) => {
    const needs = sum(cost.memory.map((part) => part[device]));
    if (needs > plan.limit[device]) broken.push(`Device ${device} needs ${bytes(needs)} and has ${bytes(plan.limit[device])}.`);
  });
  for (const [table, limit] of Object.entries(limits)) {
    for (const text of brokenLimits(plan, Number(table), limit, tables[table], held[table])) broken.push(`${plan.names[table]} ${text}.`);
  }
  const names = (group) => group.map((table) => plan.names[table]).join(", ");
  for (const group of colocate) {
    if (new Set(group.map((table) => [...held[table]].sort((a, b) => a - b).join())).size > 1) broken.push(`${names(group)} must lie on the same devices.`);
  }
  for (const group of apart) {
    const devices = group.flatMap((table) => [...held[table]]);
    if (new Set(devices).size < devices.length) broken.push(`${names(group)} must lie on different devices.`);
  }
  return broken;
}

function brokenLimits(plan, table, limit, pieces, held) {
  const [rows, dim] = [plan.task.tables.rows[table], plan.task.tables.dim[table]];
  const type = shardingType(plan, pieces, table);
  const widths = pieces.map((piece) => length(piece.columns));
  const found = [];
  if (limit.sharding_types && !limit.sharding_types.includes(type)) found.push(`is sharded ${type}; allowed are ${limit.sharding_types.join(", ")}`);
  if (limit.devices && [...held].some((device) => !limit.devices.includes(device))) found.push(`is pinned to devices ${[...new Set(limit.devices)].join(", ")}`);
  if (limit.max_shards !== null && pieces.length > limit.max_shards) found.push(`is in ${pieces.length} pieces; at most ${limit.max_shards} are allowed`);
  if (limit.min_columns !== null && widths.some((wide) => wide < Math.min(limit.min_columns, dim))) found.push(`must have at least ${limit.min_columns} columns in each piece`);
  const multiple = limit.column_multiple;
  if (multiple !== null && widths.some((wide) => wide < dim && wide % multiple)) found.push(`must be cut into multiples of ${multiple} columns`);
  if (limit.equal_columns && new Set(widths).size > 1) found.push("must have column blocks of one width");
  if (limit.equal_rows && !pieces.every((piece) => length(piece.rows) === rows) && !equalRows(plan, rows, pieces)) {
    found.push("must have equal row blocks, one on each device of the cluster or of one host");
  }
  return found;
}

function equalRows(plan, rows, pieces) {
  const columns = [...new Set(pieces.map((piece) => piece.columns.join()))];
  return columns.every((span) => {
    const blocks = pieces.filter((piece) => piece.columns.join() === span);
    const places = new Set(blocks.map((piece) => piece.devices.join()));
    const most = Math.ceil(rows / (hostsOf(plan, blocks).size === 1 ? plan.task.perHost : plan.devices));
    return places.size === blocks.length && blocks.every((piece) => length(piece.rows) <= most);
  });
}
