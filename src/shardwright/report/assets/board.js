// The matrix of a plan that is being changed: a piece is dragged to another device, or lifted, carried and laid down by the keyboard.

// A plan of these pieces as the figures read plans.
function planOf(plan, pieces) {
  const shown = { ...plan, pieces, cells: null, received: null };
  shown.blocks = { table: pieces.map((piece) => piece.table), rows: pieces.map((piece) => piece.rows), columns: pieces.map((piece) => piece.columns),
    devices: pieces.map((piece) => piece.devices), bytes: pieces.map((piece) => sum(plan.whatIf.kinds.memory[piece.kind])),
    tier: Object.fromEntries(pieces.map((piece, at) => [at, piece.tier]).filter(([, tier]) => tier)),
    types: byTable(plan, pieces).map((list, table) => shardingType(plan, list, table)) };
  indexBlocks(shown);
  indexCells(shown);
  return shown;
}

class Board extends Matrix {
  // hooks: movable(piece), choose(piece), drop(piece, device), weigh(piece, device) → [title, rows]
  constructor(plan, pieces, hooks) {
    super(planOf(plan, pieces));
    this.hooks = hooks;
    this.chosen = null;
    this.lifted = null; // the piece that is carried
    this.mark = el("div", { class: "cell-chosen", hidden: true });
    this.space.append(this.mark);
    this.scroller.classList.add("board");
    this.scroller.setAttribute("aria-label", "Board of tables and devices. Arrow keys move from cell to cell. Enter lifts the piece there and lays it down again; " +
      "Escape leaves it where it was. C cuts its columns, R its rows, J joins it, A copies it to all devices, N takes the next piece of a cell. Control and Z undoes.");
  }

  title() { return "Drag a piece to another device"; }

  // Other pieces, in the same order of tables.
  show(pieces, chosen) {
    const { view, state } = this;
    this.plan = planOf(this.plan, pieces);
    view.plan = this.plan;
    view.how = colouring(this.plan, state.mode);
    view.top = view.how.kind ? 0 : highest(this.plan, view.how);
    this.key.replaceChildren(...colourKey(view, state.mode));
    this.choose(chosen);
    this.draw();
  }

  choose(piece) {
    this.chosen = piece;
    this.frame();
  }

  // The frame around the chosen piece's cell.
  frame() {
    const { view, chosen, mark } = this;
    const row = chosen ? view.order.indexOf(chosen.table) : -1;
    mark.hidden = row < 0 || !view.cell;
    if (!mark.hidden) this.lay(mark, row, chosen.devices[0]);
  }

  measure() {
    super.measure();
    if (this.mark) this.frame();
  }

  inCell(table, device) {
    const cell = this.plan.row(table).get(device);
    return cell ? cell.blocks.map((block) => this.plan.pieces[block]) : [];
  }

  // The chosen piece, or else the first that can be moved, of a cell.
  pieceAt(row, device) {
    const found = this.inCell(this.view.order[row], device);
    return found.includes(this.chosen) ? this.chosen : found.find((piece) => this.hooks.movable(piece)) || found[0] || null;
  }

  note(row, device) {
    return this.lifted ? this.hooks.weigh(this.lifted, device) : cellNote(this.plan, this.view.order[row], device);
  }

  // Whether laying a piece down there changes the plan: a copy that is let go where it was lifted stays a copy.
  elsewhere(piece, device) { return piece.devices.length === 1 ? device !== piece.devices[0] : device !== this.from; }

  lift(piece) {
    this.from = this.state.place[1];
    this.lifted = this.hooks.movable(piece) ? piece : null;
    this.scroller.classList.toggle("carrying", this.lifted !== null);
  }

  lower() {
    const piece = this.lifted;
    this.lifted = null;
    this.scroller.classList.remove("carrying");
    return piece;
  }

  listen() {
    super.listen();
    const { scroller } = this;
    scroller.addEventListener("pointerdown", (event) => {
      const found = this.locate(event);
      const piece = found && this.pieceAt(...found);
      if (!piece || event.button) return;
      this.hooks.choose(piece);
      if (event.pointerType === "touch") return; // fingers scroll; they move pieces in the figure below
      this.lift(piece);
      scroller.setPointerCapture(event.pointerId);
    });
    scroller.addEventListener("pointerup", (event) => {
      const piece = this.lower();
      const found = piece && this.locate(event);
      if (found && this.elsewhere(piece, found[1])) this.hooks.drop(piece, found[1]);
    });
    scroller.addEventListener("pointercancel", () => this.lower());
  }

  // While a piece is carried it stays in its row.
  point(row, device, at, speak) {
    super.point(this.lifted ? Math.max(0, this.view.order.indexOf(this.lifted.table)) : row, device, at, speak);
  }

  press(event) {
    const [row, device] = this.state.place;
    const piece = this.lifted;
    if (event.key === "Escape" && piece) {
      this.lower();
      this.reveal(row, piece.devices[0]);
    } else if (event.key === "Enter" && piece) {
      event.preventDefault();
      this.lower();
      if (this.elsewhere(piece, device)) this.hooks.drop(piece, device);
      this.reveal(row, device);
    } else if (event.key === "Enter" && !this.cursor.hidden && this.pieceAt(row, device)) {
      event.preventDefault();
      const found = this.pieceAt(row, device);
      this.hooks.choose(found);
      this.lift(found);
      this.reveal(row, device);
    } else if (event.key.toLowerCase() === "n" && !event.ctrlKey && !event.metaKey) {
      const found = this.inCell(this.view.order[row], device);
      if (found.length) this.hooks.choose(found[(found.indexOf(this.chosen) + 1) % found.length]);
    } else super.press(event);
  }
}
