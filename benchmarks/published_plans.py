"""Plans for GPUs by the model from published figures and by bytes over stated bandwidth, each scored by both models.

    python -m benchmarks.published_plans --tasks 40

Made-up tasks are NeuroShard's for 8 H100s at batch 65,536. Public models are in full, on as many hosts of 8 H100s as hold them.
TorchRec's planner gets pooling factors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import shardwright as sw
from benchmarks.program import options_of
from benchmarks.results_table import command_of, write_results
from benchmarks.torchrec_quality import HOSTS
from shardwright.cost import CostModel, PublishedModel, score
from shardwright.cost.features import Floats, WorkArrays
from shardwright.cost.model import Pricing
from shardwright.cost.published import GPUS
from shardwright.errors import InfeasibleTask
from shardwright.integrations.torchrec.rival import TorchRec
from shardwright.workload import paper_tasks, public_task

HEADS = (
    "tasks", "planned by", "shards a table", "tables cut", "narrowest block of a wider table", "step, published", "step, stated",
)  # fmt: skip


@dataclass(frozen=True)
class StatedModel(CostModel):
    """A linear cost model: bytes over 60% of the stated bandwidth, plus a launch of 0.02 ms."""

    device: str = "h100"
    name: str = "h100/stated bandwidth"

    def encode_arrays(self, works: WorkArrays) -> Floats:
        """`(n, 2)` forward and backward ms."""
        outputs = works.outputs * works.dim
        forward = works.lookups * (8 + works.row_bytes) + 4 * outputs
        backward = works.lookups * (8 + 4 * works.dim) + works.distinct * (2 * works.row_bytes + 8)
        return np.stack([forward, backward], axis=1) / (GPUS[self.device].bandwidth * 0.6) * 1e3

    @property
    def pricing(self) -> Pricing:
        """The sums themselves, plus one launch for each pass."""
        nothing = np.zeros((0, 2))
        return Pricing(nothing, np.zeros(0), nothing.T, np.eye(2), np.full(2, 0.02))


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, tasks=40, seconds=(5.0, "seconds per search"),
        public=(list(HOSTS), "", {"nargs": "*", "choices": list(HOSTS)}),
    )  # fmt: skip
    made_up = paper_tasks(options.tasks, devices=8, seed=11, batch_size=65_536, device="h100")
    groups = {f"{options.tasks} made-up": made_up} if options.tasks else {}
    for name in options.public:
        groups[name] = [public_task(name, sw.Topology.preset("h100-8", hosts=HOSTS[name]))]
    rows = [row for name, tasks in groups.items() for row in _rows(name, list(tasks), options.seconds)]
    caption = (
        "Steps are geometric means over those of `certified` under the same model. Shards and tables cut are medians and means over tasks; "
        "the narrowest block is of a table wider than itself."
    )
    command = command_of("published_plans", arguments)
    write_results("published_plans", "Plans for GPUs, by two models", [(caption, HEADS, rows)], command)


def _rows(name: str, tasks: list[sw.Task], seconds: float) -> Iterator[list[object]]:
    models: tuple[CostModel, CostModel] = (PublishedModel("h100"), StatedModel())
    ways: dict[str, dict[str, Any]] = {
        "certified, published": {"strategy": "certified", "cost_model": models[0], "time_limit": seconds},
        "certified, stated": {"strategy": "certified", "cost_model": models[1], "time_limit": seconds},
        "torchrec": {"strategy": TorchRec(), "cost_model": models[0], "time_limit": max(60.0, seconds)},
    }
    plans: dict[str, list[sw.Plan]] = {by: [] for by in ways}
    for task in tasks:
        try:
            made = [sw.plan(task, **options) for options in ways.values()]
        except InfeasibleTask:  # a task that not all strategies can place cannot be compared
            continue
        for kept, plan in zip(plans.values(), made, strict=True):
            kept.append(plan)
    name = f"{name} ({len(plans['torchrec'])} placed by all)" if len(tasks) > 1 else name
    steps = {
        by: np.array([[score(plan.task, plan.shards, model).step_ms for model in models] for plan in of_planner])
        for by, of_planner in plans.items()
    }
    own = np.stack([steps[by][:, column] for column, by in enumerate(list(plans)[:2])], axis=1)
    for by, of_planner in plans.items():
        cut = [cut_tables(plan) for plan in of_planner]
        ratio = np.exp(np.log(steps[by] / own).mean(axis=0))
        shards = [len(plan.shards) / len(plan.task.tables) for plan in of_planner]
        share = np.mean([len(some) / len(plan.task.tables) for some, plan in zip(cut, of_planner, strict=True)])
        narrowest = Counter(min(widths) for widths in cut if widths)
        told = ", ".join(
            f"{width} ({count})" if len(of_planner) > 1 else str(width) for width, count in sorted(narrowest.items())
        )
        steps_over = (f"{value:.3f}" for value in ratio)
        yield [name, by, f"{np.median(shards):.2f}", f"{share:.0%}", told or "none", *steps_over]


def cut_tables(plan: sw.Plan) -> list[int]:
    """Return the width of the narrowest column block of each table that is cut into columns."""
    dims = plan.task.table_by_name
    narrowest: dict[str, int] = {}
    for shard in plan.shards:
        if shard.dim < dims[shard.table].dim:
            narrowest[shard.table] = min(shard.dim, narrowest.get(shard.table, shard.dim))
    return list(narrowest.values())


if __name__ == "__main__":
    main()
