"""A strategy of your own, checked by the conformance suite and planned with: python examples/own_strategy.py."""

from dataclasses import dataclass

import shardwright as sw
from shardwright.cost import CostModel
from shardwright.search.units import place_all, take_apart
from shardwright.testing import check_strategy


@dataclass(frozen=True)
class RoundRobin:
    """Places tables in their order, each on the next device that has room."""

    name: str = "round_robin"

    def supports(self, task: sw.Task) -> str | None:
        """Support any task without constraints on single tables."""
        return (
            None
            if not task.constraints.tables
            else "it ignores constraints on single tables; remove them or use another strategy"
        )

    def search(self, task: sw.Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> sw.Plan:
        """Place the tables in turn."""
        units = take_apart(task)
        devices = task.topology.devices
        shards = place_all(
            task,
            units,
            order=range(len(units.free)),
            choose=lambda index, eligible: int(min(eligible, key=lambda rank: (rank - index) % devices)),
        )
        return sw.Plan(task, shards, self.name, seed)


def main() -> None:
    check_strategy(RoundRobin())
    sw.register(RoundRobin())
    tables = [sw.Table(f"table_{i}", rows=10_000 * (i + 1), dim=32, pooling=5 + i) for i in range(16)]
    task = sw.Task(tables, sw.Topology.preset("a100-8"), batch_size=16_384)
    for strategy in ("round_robin", "greedy"):
        plan = sw.plan(task, strategy=strategy)
        assert plan.cost is not None
        print(f"{strategy:12} {plan.cost.compute_ms:.4f} ms of kernels, predicted")


if __name__ == "__main__":
    main()
