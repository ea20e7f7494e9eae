// A plan that is being changed, and what it costs: the sums over blocks, the head of the cost model, the links and the memory account,
// as `cost.score` has them. Every change is priced from scratch, so that nothing drifts and undoing leads back to the very same figures.

function doubles(text) {
  const raw = atob(text);
  const view = new DataView(new ArrayBuffer(raw.length));
  for (let at = 0; at < raw.length; at++) view.setUint8(at, raw.charCodeAt(at));
  return Float64Array.from({ length: raw.length / 8 }, (_, at) => view.getFloat64(8 * at, true));
}

class Prices {
  constructor(plan) {
    const { kinds, pricing, fixed, fixedReduced, collectives, proxies, pooled, copied } = plan.whatIf;
    this.plan = plan;
    this.devices = plan.devices;
    this.near = plan.task.perHost;
    this.hosts = plan.task.hosts;
    this.kinds = { ...kinds, codes: doubles(kinds.codes), asked: doubles(kinds.asked) };
    this.head = { ...pricing, hidden: doubles(pricing.hidden), bias: doubles(pricing.bias), hidden_bias: doubles(pricing.hidden_bias),
      mix: doubles(pricing.mix), linear: doubles(pricing.linear), once: doubles(pricing.once) };
    this.fixed = doubles(fixed);
    this.fixedReduced = doubles(fixedReduced);
    this.collectives = collectives;
    this.proxies = proxies;
    this.pooled = pooled;
    this.copied = new Map(Object.entries(copied).map(([table, kind]) => [Number(table), kind]));
    const reduced = doubles(plan.whatIf.reduced); // by each copy on all devices: sent inside and between hosts, received likewise
    this.reduced = new Map([...this.copied.keys()].map((table, at) => [table, reduced.slice(4 * at, 4 * at + 4)]));
    this.kindOf = new Map(kinds.size.map((size, kind) => [size.join(), kind]).reverse().filter(([, kind]) => kinds.halves[kind].length));
  }

  // Forward and backward ms of the kernels of a device with blocks of these kinds.
  kernels(held) {
    const { width } = this.head;
    const sums = new Map();
    for (const kind of held) {
      const call = this.kinds.call[kind];
      if (!sums.has(call)) sums.set(call, new Float64Array(width));
      const total = sums.get(call);
      for (let at = 0; at < width; at++) total[at] += this.kinds.codes[kind * width + at];
    }
    const times = held.length ? [...this.head.once] : [0, 0];
    for (const total of sums.values()) this.call(total).forEach((value, pass) => { times[pass] += value; });
    return times;
  }

  call(total) {
    const { width, units, gates, hidden, hidden_bias, mix, linear, bias } = this.head;
    const times = [bias[0], bias[1]];
    for (let pass = 0; pass < 2; pass++) {
      for (let at = 0; at < width; at++) times[pass] += linear[pass * width + at] * total[at];
    }
    const sum = (unit) => total.reduce((all, part, at) => all + hidden[unit * width + at] * part, hidden_bias[unit]);
    for (let unit = 0; unit < units - 3 * gates; unit++) {
      const active = sum(unit);
      if (active > 0) for (let pass = 0; pass < 2; pass++) times[pass] += mix[pass * units + unit] * active;
    }
    const found = times.map((value) => Math.max(value, 0));
    for (let gate = units - 3 * gates; gate < units; gate += 3) {
      if (sum(gate) > 0.5) for (let pass = 0; pass < 2; pass++) found[pass] += sum(gate + 1 + pass);
    }
    return found;
  }

  // What travels for all pieces together: of single ones the bytes that the samples of one device, or through proxies of one host, ask of
  // each device (values and ids, near and far, without proxies and with), of copies on all devices the gradients that each of them sums,
  // ms of rows that collectives reduce, forward and backward, and the latencies of all sets of collectives: forward, backward, of ids.
  traffic(pieces) {
    const { devices, near, collectives } = this;
    const found = { asked: [0, 1].map(() => range(4).map(() => new Float64Array(devices))), reduced: new Float64Array(4),
      apart: [0, 1].map(() => new Float64Array(devices)), waits: [0, 0, 0] };
    const blocks = new Map(); // of the same columns of a table
    for (const piece of pieces) {
      const key = `${piece.table} ${piece.columns.join()}`;
      blocks.set(key, [...(blocks.get(key) || []), piece]);
      if (this.isCopied(piece)) this.reduced.get(piece.table).forEach((size, way) => { found.reduced[way] += size; });
    }
    const sets = new Set();
    for (const same of blocks.values()) {
      const dealt = this.dealt(same);
      const offset = this.pooled[same[0].table] ? 0 : 5;
      if (same.some((piece) => piece.devices.length > 1)) sets.add(offset + 4);
      if (devices > 1 && same.some((piece) => piece.devices.length < devices)) sets.add(offset + dealt);
      for (const piece of same.filter((one) => one.devices.length === 1)) {
        const [device] = piece.devices;
        this.ask(found.asked, piece.kind, device, [[1, 1, 1, 1], [0, 1, 0, 1], [0, 1, 1 / near, 1], [1, 1, 1, 1]][dealt]);
        if (dealt % 3 === 0) continue;
        const values = this.kinds.asked[4 * piece.kind] * devices;
        found.apart.forEach((ms, pass) => { ms[device] += values * collectives.dealt[dealt - 1][pass]; });
      }
    }
    for (const set of sets) collectives.sets[set].forEach((ms, pass) => { found.waits[pass] += ms; });
    return found;
  }

  // As `cost.collectives.way_of`: 1 where the rows of a pooled table are dealt to all devices, 2 where to one host, 3 where those of a
  // sequence table are dealt to all devices, else 0.
  dealt(blocks) {
    const [{ table }] = blocks;
    const count = blocks.length;
    const ranks = new Set(blocks.map((piece) => piece.devices[0]));
    const rows = this.plan.task.tables.rows[table];
    if (this.collectives.shared || count < 2 || ranks.size < count || (!this.pooled[table] && !this.collectives.sequenceRows) || this.plan.byHotness.has(table) || blocks.some((piece) => piece.devices.length > 1)) return 0;
    const sizes = blocks.map((piece) => piece.rows[1] - piece.rows[0]).sort((one, other) => one - other);
    const most = Math.ceil(rows / count);
    const equal = sizes[count - 1] - sizes[0] <= 1 || (sizes[count - 1] === most && sizes[1] === most);
    if (sum(sizes) !== rows || !equal) return 0;
    if (count === this.devices) return this.pooled[table] ? 1 : 3;
    return this.pooled[table] && count === this.near && new Set([...ranks].map((device) => Math.floor(device / this.near))).size === 1 ? 2 : 0;
  }

  isCopied(piece) { return piece.devices.length > 1 && this.copied.get(piece.table) === piece.kind; }

  ask(asked, kind, device, shares) {
    const way = asked[this.proxies[this.kinds.size[kind][0]]];
    for (let part = 0; part < 4; part++) way[part][device] += this.kinds.asked[4 * kind + part] * shares[part];
  }

  // Forward and backward ms of the collectives of every device, beside dense layers: as `cost.score`.
  links({ asked, reduced, apart, waits }) {
    const { devices, near, fixed, fixedReduced, collectives } = this;
    if (devices === 1) return [[0], [0]];
    const [forward, backward, alone] = [0, 1, 2].map((pass) => [0, 1].map((way) => [0, 1].map((link) => fixed.slice(((pass * 2 + way) * 2 + link) * devices, ((pass * 2 + way) * 2 + link + 1) * devices))));
    const [SENT, RECEIVED] = [0, 1];
    const narrower = collectives.asked[1][0] / collectives.asked[0][0];
    asked.forEach(([values, ids, farValues, farIds], proxies) => {
      if (!this.proxies.includes(proxies)) return;
      const [valuesAsked, valuesServed] = this.shared(values, farValues, proxies);
      const [idsAsked, idsServed] = this.shared(ids, farIds, proxies);
      for (let link = 0; link < 2; link++) {
        for (let device = 0; device < devices; device++) {
          forward[SENT][link][device] += idsAsked[link][device] + valuesServed[link][device];
          forward[RECEIVED][link][device] += idsServed[link][device] + valuesAsked[link][device];
          alone[SENT][link][device] += idsAsked[link][device];
          alone[RECEIVED][link][device] += idsServed[link][device];
          backward[SENT][link][device] += narrower * valuesAsked[link][device];
          backward[RECEIVED][link][device] += narrower * valuesServed[link][device];
        }
      }
    });
    const exchanged = range(devices).map((device) => most([0, 1].map((link) => collectives.reduced[link] *
      most([SENT, RECEIVED].map((way) => reduced[2 * way + link] + fixedReduced[(2 * way + link) * devices + device])))));
    const time = (bytes, device) => most([0, 1].map((link) => Math.max(bytes(SENT, link, device), bytes(RECEIVED, link, device)) * collectives.asked[0][link]));
    const together = near > 1 ? near : devices; // devices that share links
    const mean = (bytes, link, first) => most([SENT, RECEIVED].map((way) => sum(range(together).map((at) => bytes(way, link, first + at))))) / together *
      collectives.mean[link];
    const [ofAll, ofIds, ofValues, ofGradients] = [
      (way, link, device) => forward[way][link][device], (way, link, device) => alone[way][link][device],
      (way, link, device) => forward[way][link][device] - alone[way][link][device], (way, link, device) => backward[way][link][device],
    ].map((bytes) => {
      const means = range(devices / together).map((group) => most([0, 1].map((link) => mean(bytes, link, group * together))));
      return (device) => Math.max(means[Math.floor(device / together)], time(bytes, device));
    });
    const [values, ids, gradients] = collectives.hidden;
    const passes = range(devices).map((device) => {
      const all = waits[0] + apart[0][device] + ofAll(device);
      const onlyIds = waits[2] + ofIds(device);
      const onlyValues = waits[0] - waits[2] + apart[0][device] + ofValues(device);
      const back = waits[1] + apart[1][device] + exchanged[device] + ofGradients(device);
      return [Math.max(0, all - values - ids, onlyIds - ids, onlyValues - values), Math.max(0, back - gradients)];
    });
    return [0, 1].map((pass) => passes.map((ms) => ms[pass]));
  }

  // As `cost.flows.single_holders`: bytes that each device asks for and that it serves, inside its host and between hosts.
  shared(each, far, proxies) {
    const { near, hosts, devices } = this;
    const made = () => [new Float64Array(devices), new Float64Array(devices)];
    const [asked, served] = [made(), made()];
    const byHost = new Float64Array(hosts);
    const [rail, farRail] = [new Float64Array(near), new Float64Array(near)];
    const farHost = new Float64Array(hosts);
    for (let device = 0; device < devices; device++) {
      const [host, local] = [Math.floor(device / near), device % near];
      byHost[host] += each[device];
      farHost[host] += far[device];
      rail[local] += each[device];
      farRail[local] += far[device];
    }
    const [allRails, allFar] = [sum(rail), sum(farHost)];
    for (let device = 0; device < devices; device++) {
      const [host, local] = [Math.floor(device / near), device % near];
      asked[0][device] = proxies ? allRails - rail[local] : byHost[host] - each[device];
      served[0][device] = (near - 1) * (proxies ? rail[local] : each[device]);
      asked[1][device] = proxies ? farRail[local] - far[device] : allFar - farHost[host];
      served[1][device] = (hosts - 1) * far[device] * (proxies ? 1 : near);
    }
    return [asked, served];
  }

  // Times of the four phases and parts of the memory, of every device, and the step.
  of(pieces) {
    const held = range(this.devices).map(() => []);
    const memory = range(3).map(() => new Array(this.devices).fill(0));
    for (const piece of pieces) {
      for (const device of piece.devices) {
        held[device].push(piece.kind);
        this.kinds.memory[piece.kind].forEach((size, part) => { memory[part][device] += size; });
      }
    }
    const kernels = held.map((kinds) => this.kernels(kinds));
    const [forward, backward] = this.links(this.traffic(pieces));
    return this.summed({ held, memory, phases: [kernels.map(([time]) => time), forward, backward, kernels.map(([, time]) => time)] });
  }

  summed(found) {
    const phaseMax = found.phases.map(most);
    return { ...found, phaseMax, step: phaseMax[0] + phaseMax[1] + phaseMax[2] + phaseMax[3] };
  }

  // The kind that a piece is where one device holds it; undefined where the page has no price for that.
  alone(piece) { return piece.devices.length === 1 ? piece.kind : this.isCopied(piece) ? this.kindOf.get(this.kinds.size[piece.kind].join()) : undefined; }

  // What a step would take with a piece on each device alone. The kernels of the devices that it leaves, and of that one, change, and the links.
  everywhere(pieces, piece, now) {
    const [others, kind] = [pieces.filter((one) => one !== piece), this.alone(piece)];
    const held = range(this.devices).map((device) => now.held[device]);
    for (const device of piece.devices) held[device] = others.filter((one) => one.devices.includes(device)).map((one) => one.kind);
    const left = held.map((kinds, device) => (piece.devices.includes(device) ? this.kernels(kinds) : [now.phases[0][device], now.phases[3][device]]));
    return range(this.devices).map((device) => {
      if (piece.devices.join() === String(device)) return now.step;
      const there = this.kernels([...held[device], kind]);
      const kernels = [0, 1].map((pass) => left.map((times, at) => (at === device ? there : times)[pass]));
      return this.summed({ phases: [kernels[0], ...this.links(this.traffic([...others, { ...piece, devices: [device], kind }])), kernels[1]] }).step;
    });
  }
}

// All changes so far. Pieces are never altered, so a list of them is a plan that can be returned to.
class Draft {
  constructor(plan) {
    const { blocks } = plan;
    this.plan = plan;
    this.prices = new Prices(plan);
    const pieces = blocks.table.map((table, at) => ({ table, rows: blocks.rows[at], columns: blocks.columns[at], tier: blocks.tier[at] || null,
      devices: holders(plan, at), kind: plan.whatIf.kindOf[at] }));
    this.past = [];
    this.future = [];
    this.now = this.priced(pieces, "the plan as it was made");
    this.first = this.now;
  }

  priced(pieces, what) {
    const cost = this.prices.of(pieces);
    return { pieces, what, cost, broken: brokenRules(this.plan, pieces, cost) };
  }

  change(pieces, what) {
    this.past.push(this.now);
    this.future = [];
    this.now = this.priced(pieces, what);
  }

  undo() { this.step(this.past, this.future); }

  redo() { this.step(this.future, this.past); }

  step(from, to) {
    if (!from.length) return;
    to.push(this.now);
    this.now = from.pop();
  }

  label(piece) { return this.plan.names[piece.table]; }

  move(piece, device) {
    const moved = { ...piece, devices: [device], kind: this.prices.alone(piece) };
    const from = piece.devices.length === 1 ? `device ${piece.devices[0]}` : "all devices";
    this.change(this.now.pieces.map((one) => (one === piece ? moved : one)), `${this.label(piece)}: from ${from} to device ${device}`);
    return moved;
  }

  // Whether the page can put a copy of the piece's whole table on every device.
  copyable(piece) {
    return piece.devices.length === 1 && this.prices.copied.has(piece.table);
  }

  copy(piece) {
    const { rows, dim } = this.plan.task.tables;
    const copied = { ...piece, rows: [0, rows[piece.table]], columns: [0, dim[piece.table]], devices: range(this.plan.devices), kind: this.prices.copied.get(piece.table) };
    this.change([...this.now.pieces.filter((one) => one.table !== piece.table), copied], `${this.label(piece)}: a copy on every device`);
    return copied;
  }

  // Kinds of the halves, or null where it cannot be cut so, or the page has no price for them.
  halves(piece, along) {
    const found = this.prices.kinds.halves[piece.kind];
    return piece.devices.length === 1 && found.length && found[along === "columns" ? 0 : 1].length ? found[along === "columns" ? 0 : 1] : null;
  }

  cut(piece, along) {
    const kinds = this.halves(piece, along);
    const [start, stop] = piece[along];
    const middle = start + this.prices.kinds.size[kinds[0]][along === "rows" ? 1 : 2];
    const parts = [[start, middle], [middle, stop]].map((span, at) => ({ ...piece, [along]: span, kind: kinds[at] }));
    this.change(this.now.pieces.flatMap((one) => (one === piece ? parts : [one])), `${this.label(piece)}: its ${along} cut in two on device ${piece.devices[0]}`);
    return parts[0];
  }

  // The piece that this one can be joined with, one on the same device first, and what they become; or null.
  joint(piece) {
    if (piece.devices.length > 1 || this.plan.byHotness.has(piece.table)) return null;
    const found = [];
    for (const other of this.now.pieces) {
      if (other === piece || other.table !== piece.table || other.devices.length > 1) continue;
      for (const [along, across] of [["rows", "columns"], ["columns", "rows"]]) {
        const side = piece[across].join() === other[across].join() && (piece[along][1] === other[along][0] || other[along][1] === piece[along][0]);
        if (!side) continue;
        const span = [Math.min(piece[along][0], other[along][0]), Math.max(piece[along][1], other[along][1])];
        const joined = { ...piece, [along]: span };
        const kind = this.prices.kindOf.get([piece.table, joined.rows[1] - joined.rows[0], joined.columns[1] - joined.columns[0]].join());
        if (kind !== undefined) found.push([other, { ...joined, kind }]);
      }
    }
    return found.find(([other]) => other.devices[0] === piece.devices[0]) || found[0] || null;
  }

  join(piece) {
    const [other, joined] = this.joint(piece);
    this.change(this.now.pieces.flatMap((one) => (one === piece ? [joined] : one === other ? [] : [one])),
      `${this.label(piece)}: joined with its neighbour of device ${other.devices[0]} on device ${piece.devices[0]}`);
    return joined;
  }

  // A plan file, as `shardwright plan --check` reads it.
  async file() {
    const { pieces, cost } = this.now;
    const raw = Uint8Array.from(atob(this.plan.whatIf.file), (letter) => letter.charCodeAt(0));
    const kept = await new Response(new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    const rest = {
      strategy: "by hand",
      cost_model: this.plan.whatIf.costModel,
      step_ms: cost.step,
      devices: range(this.plan.devices).map((rank) => ({ rank, forward_ms: cost.phases[0][rank], forward_communication_ms: cost.phases[1][rank],
        backward_communication_ms: cost.phases[2][rank], backward_ms: cost.phases[3][rank], memory_bytes: sum(cost.memory.map((part) => part[rank])) })),
      shards: pieces.map((piece) => ({ table: this.label(piece), rows: piece.rows, columns: piece.columns, devices: piece.devices,
        row_order: this.plan.byHotness.has(piece.table) ? "hotness" : "id", ...(piece.tier ? { tier: piece.tier } : {}) })),
    };
    return `${kept.slice(0, -1)}, ${JSON.stringify(rest).slice(1)}\n`; // the task is passed on as it was written
  }
}
