"""Write the pages of results from their figures: `python scripts/results.py` after a change of `docs/results/figures.yaml`.

The headline table goes to `docs/results.md`, and a page for each topic to `docs/results/`. The date of a figure is that of its page.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs/results/figures.yaml"
SORTED = ("size", "dim", "lookup", "size_lookup")
_HEAD = """# Results

Every figure has a page that names its command, date, commit and hardware. **Measured** figures are times of kernels or processes, or bytes,
on a real machine: shared virtual machines with two cores, or one H100. **Predicted** figures come from a cost model. Ratios are times of
Shardwright's plans over those of the other: below 1, Shardwright is faster.

"""
_TAIL = """
## Not measured

The only GPU measured so far is one H100 (torch 2.11, FBGEMM 1.6), one device of a plan after another. Nothing has run with NCCL. The
papers' headline figures are of many GPUs. Shardwright has no figures of:

- fused kernels of any other GPU, and of optimizers other than `rowwise_adagrad` in a model;
- TorchRec's plans on a GPU, and plans for more than 4 devices;
- collectives between GPUs, and training throughput on a cluster of GPUs;
- caching in host memory (UVM) for tables beyond a GPU's memory: Shardwright plans it, but it has never been run.

To measure another GPU, run `scripts/collect_gpu.sh`, `shardwright calibrate`, `shardwright tune` or `benchmarks/gpu_plans.py`
([how](tutorials/cost-model.md)). All four have run on the H100.
"""


def main() -> None:
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Return the text of each page by its path."""
    data = yaml.safe_load(FIGURES.read_text(encoding="utf-8"))
    topics = "\n".join(f"- [{topic['title']}](results/{topic['name']}.md)" for topic in data["topics"])
    more = f"\n## By topic\n\n{topics}\n- [All measured pages](measurements/index.md)\n"
    found = {ROOT / "docs/results.md": _HEAD + _headline(data["headline"]) + more + _TAIL}
    return found | {FIGURES.with_name(f"{topic['name']}.md"): _topic(topic) for topic in data["topics"]}


def date_of(page: str) -> str:
    """Return the last date in the head of a page of `benchmarks/results`."""
    head = "\n".join((ROOT / f"benchmarks/results/{page}.md").read_text(encoding="utf-8").splitlines()[:6])
    return max(re.findall(r"\d{4}-\d{2}-\d{2}", head))


def _headline(rows: list[dict[str, str]]) -> str:
    lines = [
        "| setting | metric | ours, or ratio | against | obtained | date |",
        "| --- | --- | ---: | --- | --- | --- |",
    ]
    for row in rows:
        cells = [row[name] for name in ("setting", "metric", "ratio", "rival")]
        lines.append(_line(*cells, f"[{row['by']}](measurements/{row['page']}.md)", date_of(row["page"])))
    return "\n".join(lines) + "\n"


def _topic(topic: dict[str, Any]) -> str:
    parts = [f"# {topic['title']}\n", topic["intro"]]
    for group in topic["groups"]:
        verdicts = any("verdict" in row for row in group["rows"])
        lines = [
            _line("what", "found", *["verdict"] * verdicts, "page", "date"),
            _line("---", "---:", *["---"] * verdicts, "---", "---"),
        ]
        for row in group["rows"]:
            verdict = [row.get("verdict", "")] * verdicts
            value = row.get("value") or _over_best_sorted(row["page"], row["over_best_sorted"])
            lines.append(
                _line(
                    row["what"],
                    value,
                    *verdict,
                    f"[{row['page']}](../measurements/{row['page']}.md)",
                    date_of(row["page"]),
                )
            )
        parts.append(f"## {group['title']}\n\n" + "\n".join(lines) + "\n")
    return "\n".join([*parts, *([topic["notes"]] if "notes" in topic else [])])


def _over_best_sorted(page: str, strategy: str) -> str:
    """Return a strategy's measured step over that of each task's best sorted heuristic, as a geometric mean."""
    steps: dict[tuple[int, str], list[float]] = {}
    for row in pq.read_table(ROOT / f"benchmarks/results/{page}.parquet").to_pylist():
        times = steps.setdefault((row["task"], row["strategy"]), [0.0, 0.0])
        times[:] = (
            max(old, row[f"measured_{way}_ms"]) for old, way in zip(times, ("forward", "backward"), strict=True)
        )
    placed = {task for task, name in steps if name == SORTED[0]}  # sorted heuristics place pooled tables only
    best = {task: min(sum(steps[task, name]) for name in SORTED) for task in placed}
    return f"{geometric_mean(sum(steps[task, strategy]) / ms for task, ms in best.items()):.2f}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
