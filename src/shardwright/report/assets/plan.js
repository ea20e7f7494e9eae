// A plan as the figures read it: blocks by table, cells by table and device.

const PHASES = ["forward lookup", "forward collectives", "backward collectives", "backward and optimizer"];
const MEMORY = ["weights", "optimizer state", "buffers"];
const KINDS = ["table_wise", "column_wise", "row_wise", "data_parallel", "table_row_wise", "grid", "tiered"];

function readPlan(data, index) {
  const raw = data.plans[index];
  const task = data.tasks[raw.task];
  const devices = task.hosts * task.perHost;
  const plan = { ...raw, index, task, devices, names: task.tables.name, change: data.changes[index] };
  plan.limit = typeof task.limit === "number" ? new Array(devices).fill(task.limit) : task.limit;
  plan.totals = range(devices).map((device) => sum(plan.phases.map((times) => times[device])));
  plan.held = range(devices).map((device) => sum(plan.memory.map((part) => part[device])));
  plan.phaseMax = plan.phases.map(most);
  plan.fullest = most(plan.held.map((size, device) => size / plan.limit[device]));
  plan.worth = raw.cells && raw.cells.stepMs;
  plan.byHotness = new Set(raw.blocks.byHotness);
  plan.where = (device) => (task.hosts > 1 ? `device ${device} (host ${Math.floor(device / task.perHost)})` : `device ${device}`);
  indexBlocks(plan);
  indexCells(plan);
  return plan;
}

const holders = (plan, block) => {
  const found = plan.blocks.devices[block];
  return found === "all" ? range(plan.devices) : typeof found === "number" ? [found] : found;
};

function indexBlocks(plan) {
  const { blocks, names } = plan;
  plan.blocksOf = names.map(() => []);
  blocks.table.forEach((table, block) => plan.blocksOf[table].push(block));
  plan.bytesOf = plan.blocksOf.map((list) => sum(list.map((block) => blocks.bytes[block] * holders(plan, block).length)));
}

// Cells of each table: the devices in order, with the blocks they hold; built when they are first looked at.
function indexCells(plan) {
  const rows = new Array(plan.names.length);
  const starts = [0];
  if (plan.cells) plan.cells.counts.forEach((count) => starts.push(starts[starts.length - 1] + count));
  plan.row = (table) => {
    if (!rows[table]) rows[table] = readRow(plan, table, starts[table]);
    return rows[table];
  };
}

function readRow(plan, table, start) {
  const found = new Map();
  for (const block of plan.blocksOf[table]) {
    for (const device of holders(plan, block)) {
      if (!found.has(device)) found.set(device, []);
      found.get(device).push(block);
    }
  }
  const devices = [...found.keys()].sort((a, b) => a - b);
  return new Map(devices.map((device, at) => {
    const blocks = found.get(device);
    const cell = { blocks, bytes: sum(blocks.map((block) => plan.blocks.bytes[block])), ms: null };
    if (plan.cells) cell.ms = plan.cells.ms.map((column) => column[start + at]);
    return [device, cell];
  }));
}

// A block in words: its rows and columns of its table.
function blockText(plan, block) {
  const { rows, columns, tier } = plan.blocks;
  const table = plan.blocks.table[block];
  const whole = plan.task.tables.rows[table];
  const full = rows[block][0] === 0 && rows[block][1] === whole;
  const wide = columns[block][0] === 0 && columns[block][1] === plan.task.tables.dim[table];
  const ranks = plan.byHotness.has(table) ? "hottest rows" : "rows";
  const dealt = tier[block];
  const part = dealt ? `${integer(rows[block][1] - rows[block][0])} rows dealt from ${ranks} ${span(dealt)}` : `${ranks} ${span(rows[block])}`;
  return `${full && !dealt ? `all ${integer(whole)} rows` : part} × ${wide ? `all ${columns[block][1]} columns` : `columns ${span(columns[block])}`}`;
}
