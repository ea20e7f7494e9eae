"""Draw the pictures of the documentation's concept pages: python scripts/draw_concepts.py docs/assets.

Each picture is one SVG with its own background, light or dark as the reader prefers, so that it can be read on any page.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from shardwright.files import write_atomically

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px } .quiet { fill: #59636e }
  .title { font-weight: 600 } .mid { text-anchor: middle } .end { text-anchor: end } .ground { fill: #ffffff; stroke: #d1d9e0 }
  .block { stroke: #1f2328; stroke-width: 1 } .d0 { fill: #8cc5ff } .d1 { fill: #d6ebff } .d2 { fill: #ffb77c } .d3 { fill: #ffe5cc }
  .all { fill: #b9e5c0 } .host { fill: #e5dafb } .label { fill: #1f2328; font-weight: 600 }
  .axis { stroke: #59636e; fill: none } .curve { stroke: #0969da; stroke-width: 2.5; fill: none }
  .chord { stroke: #bc4c00; stroke-width: 2; stroke-dasharray: 5 4; fill: none } .dot { fill: #0969da } .spot { fill: #bc4c00 }
  .forward { fill: #0969da } .backward { fill: #54aeff } .links { fill: #bc4c00 } .wait { fill: #59636e; opacity: .18 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .quiet { fill: #a5aeb8 } .ground { fill: #1b2028; stroke: #3d444d }
    .block { stroke: #0d1117 } .label { fill: #0d1117 } .axis { stroke: #a5aeb8 } .curve { stroke: #79c0ff } .dot { fill: #79c0ff }
    .chord { stroke: #f0a35e } .spot { fill: #f0a35e } .forward { fill: #388bfd } .backward { fill: #a5d6ff } .links { fill: #f0883e }
    .wait { fill: #a5aeb8 }
  }
"""


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawing in (("types", types()), ("step", step()), ("jensen", jensen()), ("tiers", tiers())):
        write_atomically(folder / f"{name}.svg", drawing)


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return the SVG of some parts, with a title for screen readers."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    ground = f'<rect class="ground" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="6"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(title)}</title><style>{STYLE}</style>\n'
        + "\n".join([ground, *parts])
        + "\n</svg>\n"
    )


def text(x: float, y: float, said: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(said)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"/>'


def types() -> str:
    """Draw every sharding type as blocks of one table, with the ranks that hold them."""
    one = [(0.0, 1.0, 0.0, 1.0, "d1", "1")]
    columns = [(0, 1, i / 4, (i + 1) / 4, f"d{i}", str(i)) for i in range(4)]
    rows = [(i / 4, (i + 1) / 4, 0, 1, f"d{i}", str(i)) for i in range(4)]
    near = [(0, 0.5, 0, 1, "d2", "2"), (0.5, 1, 0, 1, "d3", "3")]
    grid = [
        (r / 2, (r + 1) / 2, c / 2, (c + 1) / 2, f"d{2 * c + r}", str(2 * c + r)) for r in range(2) for c in range(2)
    ]
    tier = [
        (0, 0.16, 0, 1, "all", "0 1 2 3"),
        (0.16, 0.3, 0, 1, "host", "0 2"),
        (0.3, 0.44, 0, 1, "host", "1 3"),
        *((0.44 + 0.14 * i, 0.58 + 0.14 * i, 0, 1, f"d{i}", str(i)) for i in range(4)),
    ]
    found = [
        ("table_wise", one, "one block, one device"),
        ("column_wise", columns, "column blocks"),
        ("row_wise", rows, "row blocks"),
        ("data_parallel", [(0, 1, 0, 1, "all", "0 1 2 3")], "one block, all devices"),
        ("table_row_wise", near, "row blocks on one host"),
        ("grid", grid, "rows × columns"),
        ("tiered", tier, "hot, warm, cold rows"),
    ]
    parts, side = [], 132
    for index, (name, blocks, said) in enumerate(found):
        left, top = 24 + index % 4 * 176, 44 + index // 4 * 216
        parts += [text(left, top - 12, name, "title"), text(left, top + side + 20, said, "quiet small")]
        for start, stop, first, last, kind, ranks in blocks:
            x, y, width, height = left + first * side, top + start * side, (last - first) * side, (stop - start) * side
            parts += [
                box(x, y, width, height, f"block {kind}"),
                text(x + width / 2, y + height / 2 + 4, ranks, "label small mid"),
            ]
    left, top = 24 + 3 * 176, 44 + 216
    legend = [
        "two hosts of two devices:",
        "ranks 0 and 1, ranks 2 and 3",
        "",
        "the number in a block is",
        "the rank that holds it;",
        "several: replicas",
    ]
    parts += [text(left, top + 16 + 19 * number, said, "quiet small") for number, said in enumerate(legend)]
    return picture(744, 448, "Sharding types as blocks of a table", parts)


def step() -> str:
    """Draw the four phases of four devices: each phase ends with its slowest device."""
    phases = [
        ("forward kernel", "forward", (84, 140, 110, 72)),
        ("forward links", "links", (88, 88, 112, 88)),
        ("backward links", "links", (80, 80, 104, 80)),
        ("backward kernel", "backward", (140, 210, 162, 114)),
    ]
    parts, left, top = [], 92.0, 62
    for name, kind, times in phases:
        widest = max(times)
        for rank, time in enumerate(times):
            y = top + rank * 32
            parts += [box(left, y, time, 22, kind), box(left + time, y, widest - time, 22, "wait")]
        parts += [
            text(left + 2, top - 10, name, "small quiet"),
            line(left + widest, top - 22, left + widest, top + 126, "axis"),
        ]
        left += widest + 8
    parts += [text(18, top + 16 + rank * 32, f"device {rank}", "quiet small") for rank in range(4)]
    parts += [text(18, 26, "A step: every phase waits for its slowest device (grey: waiting)", "title")]
    return picture(708, 206, "The four phases of a step on four devices", parts)


def jensen() -> str:
    """Draw a convex time, two unequal devices, and the lower bound on the mean of their times."""
    left, bottom, wide, high = 56.0, 268.0, 420.0, 220.0

    def time(z: float) -> float:
        return 0.16 + 0.22 * z + 0.62 * max(0.0, z - 0.42) + 0.5 * max(0.0, z - 0.72)

    def at(z: float, ms: float) -> tuple[float, float]:
        return left + z * wide, bottom - ms * high

    points = " ".join("{:.1f},{:.1f}".format(*at(z / 100, time(z / 100))) for z in range(101))
    parts = [text(18, 26, "The mean of the devices costs at least the cost of the mean", "title")]
    parts += [line(left, bottom, left + wide, bottom, "axis"), line(left, bottom, left, 44, "axis")]
    parts += [
        text(left + wide, bottom + 20, "sum of encodings of a device", "quiet small end"),
        text(18, 44, "ms", "quiet small"),
    ]
    parts += [f'<polyline class="curve" points="{points}"/>']
    low, full = 0.22, 0.9
    middle = (low + full) / 2
    parts += [line(*at(low, time(low)), *at(full, time(full)), "chord")]
    for z, name, kind in ((low, "device 0", "dot"), (full, "device 1", "dot")):
        x, y = at(z, time(z))
        parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>', text(x - 8, y - 12, name, "small end")]
    mean = (time(low) + time(full)) / 2
    for ms, said, kind, shift in (
        (mean, "mean of the times", "spot", -10),
        (time(middle), "time of the mean: the bound", "dot", 20),
    ):
        x, y = at(middle, ms)
        parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>']
        parts += [text(x + (-8 if kind == "spot" else 10), y + shift, said, "small end" if kind == "spot" else "small")]
    return picture(520, 306, "Jensen's inequality: the mean of the times is at least the time of the mean", parts)


def tiers() -> str:
    """Draw an access curve cut into hot, warm and cold rows, and where each part lies."""
    left, bottom, wide, high, rows = 56.0, 246.0, 400.0, 190.0, 10_000
    weights = [(rank + 1) ** -1.1 for rank in range(rows)]
    total, share, curve = sum(weights), 0.0, []
    for rank, weight in enumerate(weights):
        share += weight / total
        x = math.log10(rank + 1) / 4
        if not curve or x - curve[-1][0] > 0.004 or rank == rows - 1:
            curve.append((x, share))
    cuts = [(0.0, 0.3, "all", "hot"), (0.3, 0.62, "host", "warm"), (0.62, 1.0, "d0", "cold")]
    parts = [text(18, 26, "A table cut by hotness", "title")]
    for start, stop, kind, name in cuts:
        x, width = left + start * wide, (stop - start) * wide
        parts += [
            f'<rect class="{kind}" x="{x:g}" y="{bottom - high:g}" width="{width:g}" height="{high:g}" opacity=".55"/>'
        ]
        parts += [text(x + width / 2, bottom - 12, name, "label small mid")]
    points = " ".join(f"{left + x * wide:.1f},{bottom - y * high:.1f}" for x, y in curve)
    parts += [f'<polyline class="curve" points="{points}"/>']
    parts += [line(left, bottom, left + wide, bottom, "axis"), line(left, bottom, left, bottom - high, "axis")]
    parts += [text(left + wide, bottom + 20, "rows, hottest first (logarithmic)", "quiet small end")]
    parts += [
        text(left - 8, bottom - high + 5, "1", "quiet small end"),
        text(left - 8, bottom + 4, "0", "quiet small end"),
    ]
    parts += [text(18, 46, "share of the lookups up to a row", "quiet small")]
    said = [
        "hot: a replica on every device,",
        "nothing is asked of others",
        "",
        "warm: dealt out to the devices",
        "of every host, asked inside it",
        "",
        "cold: dealt out to all devices,",
        "held once",
    ]
    parts += [text(left + wide + 24, 84 + 19 * number, words, "small") for number, words in enumerate(said)]
    return picture(690, 284, "Hot, warm and cold rows of a table on its access curve", parts)


if __name__ == "__main__":
    main()
