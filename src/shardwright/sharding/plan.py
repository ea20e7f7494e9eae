"""A plan: shards that tile every table of a task, and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.sharding.checking import check_plan, shards_by_table
from shardwright.sharding.costs import BoundScope, PlanCost, SearchEnd, Tuning
from shardwright.sharding.memory import MemoryAccount, memory_account
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.runtimes import runtimes_of
from shardwright.sharding.shard import Shard, sharding_type_of
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.sharding.diff import PlanDiff


@dataclass(frozen=True)
class Plan:
    """The answer to a task.

    Attributes:
        task: the task that the plan answers.
        shards: blocks that tile every table exactly.
        strategy: name of the strategy that found the plan.
        seed: seed the strategy was given.
        cost_model: name of the cost model that search and scoring used.
        cost: predicted cost; None before scoring.
        bound_ms: proven lower bound on `cost.step_ms`, by the same cost model; None if unknown.
        bound_scope: which plans of the task the bound covers; `BOUND_SCOPES` has the words.
        search_s: seconds the search took; None if unknown.
        search_end: why a search with a bound ended; `SEARCH_ENDS` has the words. None for other searches.
        rank_maps: by table, the rank of each id, for tables in order of hotness. A table without a map has ids that are ranks
            already. Set by `with_rank_maps`.
        tuning: the plan's measured step and how it was found; None if the plan was not tuned.
    """

    task: Task
    shards: Sequence[Shard]
    strategy: str = ""
    seed: int = 0
    cost_model: str = ""
    cost: PlanCost | None = None
    bound_ms: float | None = None
    bound_scope: BoundScope = "blocks"
    search_s: float | None = None
    search_end: SearchEnd | None = None
    rank_maps: Mapping[str, RankMap] = field(default_factory=dict)
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", tuple(self.shards))
        object.__setattr__(self, "rank_maps", dict(self.rank_maps))

    def __repr__(self) -> str:
        from shardwright.sharding.display import plan_line

        return plan_line(self)

    def _repr_html_(self) -> str:
        """The plan as HTML, for notebooks."""
        from shardwright.sharding.display import plan_html

        return plan_html(self)

    @property
    def gap(self) -> float | None:
        """(step − bound) / bound: how far, at most, the plan is from the best possible one.

        None without a bound, and if the bound counts the links alone: such a gap would consist mostly of kernels.
        """
        if self.cost is None or self.bound_ms is None or self.bound_ms <= 0 or self.bound_scope == "links":
            return None
        return (self.cost.step_ms - self.bound_ms) / self.bound_ms

    @cached_property
    def by_table(self) -> dict[str, list[Shard]]:
        """The shards of each table, in the task's order."""
        return shards_by_table(self.task, self.shards)

    @cached_property
    def by_device(self) -> list[list[Shard]]:
        """The shards each device holds, in order of rank."""
        held: list[list[Shard]] = [[] for _ in range(self.task.topology.devices)]
        for shard in self.shards:
            for rank in shard.devices:
                held[rank].append(shard)
        return held

    @cached_property
    def memory(self) -> MemoryAccount:
        """Bytes per device."""
        return memory_account(self.task, self.shards)

    @cached_property
    def tiered(self) -> bool:
        """Whether any table counts its rows by hotness."""
        return any(shard.row_order == "hotness" for shard in self.shards)

    @cached_property
    def runs_on(self) -> tuple[str, ...]:
        """Runtimes that can run every table of the plan: "shardwright", "torchrec", both or none; see `shardwright.sharding.runtimes`."""
        return runtimes_of(self)

    def sharding_type(self, table: str) -> str:
        """The sharding type of a table, such as "column_wise"."""
        return sharding_type_of(self.by_table[table], self.task.table_by_name[table], self.task.topology)

    def check(self) -> None:
        """Check exact tiling, devices, memory and constraints.

        Raises:
            InvalidPlan: a rule is broken.
        """
        check_plan(self.task, self.shards)

    def with_rank_maps(self, maps: Mapping[str, RankMap]) -> Plan:
        """Return this plan with the rank maps of its tables in order of hotness, each cut to the ranks that the plan tells apart.

        Args:
            maps: by table name; maps of other tables, and of tables in order of ids, are left out.

        Raises:
            InvalidInput: a map and its table differ in their number of rows.
        """
        from shardwright.sharding.files import attached

        return replace(self, rank_maps=attached(self, maps))

    def diff(self, newer: Plan) -> PlanDiff:
        """Return the moves of tables, with their bytes, when `newer` replaces this plan."""
        from shardwright.sharding.diff import diff_plans

        return diff_plans(self, newer)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; atomic. Rank maps go to a file beside it, `<stem>.ranks.safetensors`."""
        from shardwright.sharding.files import save_plan

        save_plan(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read and check a plan file.

        Raises:
            InvalidInput: the file cannot be read, is of another format version, or breaks a rule.
        """
        from shardwright.sharding.files import load_plan

        return load_plan(Path(path))
