// The note beside the pointer or the keyboard's place in a figure, one for the page; the keyboard's is spoken too.

const tip = {
  node: document.getElementById("tip"),
  spoken: document.getElementById("spoken"),
  owner: null,
  place: null,

  // owner: the figure that shows it. place: [x, y] of the pointer, or a function that says where the keyboard's place is, however the page is scrolled.
  show(owner, place, title, rows, speak = false) {
    this.node.replaceChildren(el("strong", {}, title), el("dl", {}, rows.map(([name, value]) =>
      [el("dt", {}, name), el("dd", {}, value)])));
    this.node.hidden = false;
    Object.assign(this, { owner, place });
    this.move();
    if (speak) this.spoken.textContent = [title, ...rows.map(([name, value]) => `${name}: ${value}`)].join(". ");
  },

  move() {
    const [x, y] = typeof this.place === "function" ? this.place() : this.place;
    const { width, height } = this.node.getBoundingClientRect();
    const right = document.documentElement.clientWidth - 8;
    const left = x + 14 + width > right ? Math.max(8, Math.min(x - 14 - width, right - width)) : x + 14;
    const top = y + 14 + height > innerHeight - 8 ? Math.max(8, y - 14 - height) : y + 14;
    this.node.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  },

  scrolled() {
    if (typeof this.place === "function") this.move();
    else this.hide();
  },

  // A figure that is left hides its own note, not that of the next one.
  hide(owner = this.owner) {
    if (owner !== this.owner) return;
    this.node.hidden = true;
    Object.assign(this, { owner: null, place: null });
  },
};

addEventListener("scroll", () => tip.scrolled(), { passive: true });
addEventListener("keydown", (event) => event.key === "Escape" && tip.hide());
