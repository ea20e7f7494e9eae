// Traffic by class of link, tiers of tables whose rows lie by hotness, and predicted beside measured times.

const KIND_OF_TRAFFIC = { ids: "ids and lengths", values: "values", sums: "partial sums", gradients: "gradients", sum_gradients: "gradients of sums", replicas: "sums of replicas' gradients" };

function trafficSection(plan) {
  const top = most(plan.traffic.map((link) => link.ms)) || 1;
  const rows = plan.traffic.map((link) => {
    const phase = link.pass === "forward" ? 1 : 2;
    const peak = most(link.busiest);
    const kinds = Object.entries(link.kinds).filter(([, size]) => size);
    const rank = link.busiest.indexOf(peak);
    return el("article", { class: "card" }, el("h3", {}, swatch("phase-" + phase), `${link.pass}, ${link.link}`),
      el("p", { class: "middling" }, bytes(link.sent), el("span", { class: "quiet" }, " sent in total")), bar(link.ms / top, "phase-" + phase),
      el("p", { class: "small" }, kinds.map(([kind, size]) => `${KIND_OF_TRAFFIC[kind]} ${bytes(size)}`).join(" · ")),
      el("p", { class: "small" }, peak ? `Busiest: ${plan.where(rank)}, ${bytes(peak)} one way, all collectives take ${ms(link.ms)} without latencies; all-to-alls run at up to ${bytes(link.bandwidth)}/s.` : "Nothing is sent."),
      strip(link.busiest, rank, "phase-" + phase));
  });
  return section("traffic", "Traffic by class of link", "Bytes of one step: ids, and values or partial sums forward, their gradients backward, and the gradients that replicas sum. The longer bar takes longer; both classes of link work at the same time.",
    el("div", { class: "cards" }, rows));
}

const CURVES = 6;

function tierSection(plan) {
  const part = (curve) => {
    const name = plan.names[curve.table];
    const rows = curve.tiers.map((tier) => [tier.name, span(tier.rows), percent((tier.rows[1] - tier.rows[0]) / curve.rows[curve.rows.length - 1], 2), percent(tier.share),
      String(tier.copies), integer(tier.blocks), bytes(tier.bytes * tier.copies)]);
    return el("div", { class: "tiered" }, accessCurve(curve, name),
      table(["tier", "rows, hottest first", "of all rows", "of all lookups", "copies", "blocks", "weights, all copies"], rows, { caption: `Tiers of ${name}` }));
  };
  const others = plan.tiered.slice(CURVES);
  const rest = el("details", {}, el("summary", {}, `The other ${plural(others.length, "table")}`));
  rest.addEventListener("toggle", () => rest.open && rest.children.length === 1 && rest.append(...others.map(part)));
  return section("tiers", "Tiers", "Rows of these tables are placed by how often they are looked up: hot rows on every device, warm rows once on every host, cold rows once.", plan.tiered.slice(0, CURVES).map(part), others.length > 0 && rest);
}

function measuredSection(plan) {
  const [forward, backward] = plan.measured;
  const both = [[plan.phases[0], forward, 0, "forward lookup"], [plan.phases[3], backward, 3, "backward and optimizer"]];
  const predicted = plan.phaseMax[0] + plan.phaseMax[3];
  const measured = most(forward) + most(backward);
  const off = range(plan.devices).map((device) => [plan.phases[0][device] + plan.phases[3][device], forward[device] + backward[device]]).filter(([value]) => value > 0)
    .map(([value, found]) => Math.abs(found / value - 1));
  const apart = plan.notComparable || signed(predicted ? measured / predicted - 1 : 0);
  const average = plan.notComparable ? "" : `Over the devices, kernels differ from their prediction by ${percent(off.length ? sum(off) / off.length : 0)} on average. `;
  const intro = `Slowest forward plus slowest backward kernel: predicted ${ms(predicted)}, measured ${ms(measured)} (${apart}). ${average}` +
    "Links were not measured. Rings are predicted times, discs measured ones.";
  return section("measured", "Predicted and measured kernels", intro,
    both.map(([times, found, phase, name]) => pairs({ title: `Time of ${name} on each device (ms)`, predicted: times, measured: found, name: "phase-" + phase, notComparable: plan.notComparable })));
}
