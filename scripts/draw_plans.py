"""Draw the predicted kernel times of several plans of one task, device by device, as one SVG.

python scripts/draw_plans.py docs/plans.svg shardwright-demo/mlperf-dlrm-dcnv2/{random,greedy,certified}.json
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from shardwright.files import write_atomically
from shardwright.sharding import Plan

WIDTH, LEFT, RIGHT, ROW, GAP, HEAD = 760, 150, 40, 22, 6, 54
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 } .quiet { fill: #59636e } .title { font-weight: 600 }
  .forward { fill: #0969da } .backward { fill: #54aeff } .slowest { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 4 3 }
  @media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .quiet { fill: #9198a1 } .forward { fill: #1f6feb }
  .backward { fill: #79c0ff } .slowest { stroke: #f85149 } }
"""


def main() -> None:
    target, *files = map(Path, sys.argv[1:])
    plans = [Plan.load(file) for file in files]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, drawing(plans))


def drawing(plans: Sequence[Plan]) -> str:
    """Return the SVG: a group of bars per plan, a bar per device, all to one scale."""
    scale = (WIDTH - LEFT - RIGHT) / max(device.compute_ms for plan in plans for device in devices(plan))
    parts, top = [], 0
    for plan in plans:
        group, height = bars(plan, top, scale)
        parts += group
        top += height
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def bars(plan: Plan, top: int, scale: float) -> tuple[list[str], int]:
    """Return the bars of one plan, and their height."""
    slowest = max(device.compute_ms for device in devices(plan))
    heading = f"{plan.strategy}: the slowest device computes for {slowest:.2f} ms a step"
    parts = [f'<text class="title" x="0" y="{top + 24}">{escape(heading)}</text>']
    if top == 0:
        parts.append(f'<text class="quiet" x="{WIDTH - 250}" y="24">dark: forward · light: backward</text>')
    for device in devices(plan):
        y = top + HEAD - 14 + device.rank * (ROW + GAP)
        shards = len(plan.by_device[device.rank])
        label = f"device {device.rank} · {shards} {'shard' if shards == 1 else 'shards'}"
        forward, backward = device.forward_ms * scale, device.backward_ms * scale
        parts.append(f'<text class="quiet" x="0" y="{y + 15}">{label}</text>')
        parts.append(f'<rect class="forward" x="{LEFT}" y="{y}" width="{forward:.1f}" height="{ROW}"/>')
        parts.append(f'<rect class="backward" x="{LEFT + forward:.1f}" y="{y}" width="{backward:.1f}" height="{ROW}"/>')
    height = HEAD + len(devices(plan)) * (ROW + GAP)
    x = LEFT + slowest * scale
    parts.append(f'<line class="slowest" x1="{x:.1f}" y1="{top + HEAD - 18}" x2="{x:.1f}" y2="{top + height - 16}"/>')
    return parts, height


def devices(plan: Plan):
    """Return the costs of the plan's devices."""
    if plan.cost is None:
        sys.exit(f"the plan of strategy {plan.strategy} carries no cost: score it first")
    return plan.cost.devices


if __name__ == "__main__":
    main()
