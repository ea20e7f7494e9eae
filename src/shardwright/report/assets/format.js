// Numbers as people write them.

const integer = (value) => Math.round(value).toLocaleString("en-US");
const MINUS = "−";

function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 ms";
  const size = Math.abs(value);
  const digits = size >= 100 ? 1 : size >= 0.1 ? 3 : size >= 0.001 ? 4 : 6;
  return value.toFixed(digits).replace("-", MINUS) + " ms";
}

function bytes(value) {
  let size = value;
  for (const unit of ["B", "KB", "MB", "GB", "TB"]) {
    if (Math.abs(size) < 999.5) return (unit === "B" ? size.toFixed(0) : size.toPrecision(3)) + " " + unit;
    size /= 1000;
  }
  return size.toPrecision(3) + " PB";
}

const percent = (share, digits = 1) =>
  share === null || share === undefined ? "–" : (100 * share).toFixed(digits).replace("-", MINUS) + "%";
// Milliseconds without the unit and to four places, for lists in which small times hardly matter.
const plainMs = (value) => (Math.abs(value) < 0.00005 ? "0" : value.toFixed(Math.abs(value) >= 10 ? 2 : Math.abs(value) >= 1 ? 3 : 4).replace("-", MINUS));
// How full memory is: a little is not nothing.
const used = (share) => (share > 0 && share < 0.01 ? "below 1%" : percent(share, 0));
// Ranks in short form, as "0-3, 8".
function rankText(ranks, devices) {
  if (ranks.length === devices && devices > 1) return "all";
  const runs = [];
  ranks.forEach((rank) => {
    const last = runs[runs.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  });
  return runs.map(([start, stop]) => (start === stop ? String(start) : `${start}-${stop}`)).join(", ");
}
const signed = (share) => (share > 0 ? "+" : "") + percent(share);
const span = ([start, stop]) => `${integer(start)} … ${integer(stop)}`;
const plural = (count, one, many = one + "s") => `${integer(count)} ${count === 1 ? one : many}`;

// Round steps up to a maximum, about so many.
function ticks(top, count = 4) {
  if (!(top > 0)) return [0];
  const rough = top / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) * power;
  return range(Math.floor(top / step + 1e-9) + 1).map((index) => index * step);
}

// Labels of ticks with as few digits as tell them apart.
function tickLabels(values, unit) {
  if (unit === "bytes") return values.map((value) => (value ? bytes(value) : "0"));
  const step = values.length > 1 ? values[1] - values[0] : values[0] || 1;
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) + 1e-9) + (/^[125]0*$/.test(String(step).replace(/[0.]/g, "") || "1") ? 0 : 1)));
  return values.map((value) => value.toFixed(digits));
}
