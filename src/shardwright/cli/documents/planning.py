"""Documents of commands that make, compare and show plans."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from shardwright.cli.output import Document
from shardwright.questions.group_sizes import SizeOfGroups
from shardwright.sharding.costs import DeviceCost, Tuning
from shardwright.sharding.diff import TableChange


class Proof(TypedDict):
    """A predicted step, the proven bound, the plans that the bound covers, and the gap: step / bound − 1."""

    step_ms: float | None
    bound_ms: float | None
    bound_scope: str | None
    gap: float | None


class ShardOfPlan(TypedDict):
    """A shard of a plan file; `rows` and `columns` are the first one and the one after the last."""

    table: str
    rows: tuple[int, int]
    columns: tuple[int, int]
    devices: list[int]
    row_order: str
    sharding_type: str
    tier: NotRequired[tuple[int, int]]


class RankMapsOfPlan(TypedDict):
    """The file of rank maps beside a plan file, and its SHA-256."""

    file: str
    sha256: str


class PlanFile(Proof):
    """A plan file."""

    format: int
    task: dict[str, Any]
    shards: list[ShardOfPlan]
    strategy: str
    seed: int
    cost_model: str
    embedding_cost_ms: float | None
    search_s: float | None
    search_end: str | None
    runs_on: list[str]
    devices: list[DeviceCost]
    rank_maps: NotRequired[RankMapsOfPlan]
    tuning: NotRequired[Tuning]


class MoveOfPlan(TypedDict):
    """Bytes that a device fetches."""

    table: str
    device: int
    bytes: int


class LeastMoving(TypedDict):
    """The plan that moves only what must move."""

    step_ms: float
    moved_bytes: int


Change = TypedDict(
    "Change",
    {
        "from": str,
        "move_cost": float | None,
        "old_step_ms": float | None,
        "why_old_does_not_apply": str | None,
        "least_moving": LeastMoving | None,
        "gain_ms": float,
        "gain": float | None,
        "crossing": list[str],
        "moves": list[MoveOfPlan],
        "tables": list[TableChange],
        "added": list[str],
        "removed": list[str],
        "changed": list[str],
        "made_bytes": int,
        "new_devices": int,
        "gone_devices": int,
        "moved_bytes": int,
        "kept_bytes": int,
    },
)


class Balance(TypedDict):
    """Memory of the fullest device: of this plan, and the least proven; and the best step."""

    fullest_bytes: int
    least_bytes: int
    best_ms: float


class Plan(PlanFile, Document):
    """`plan`: the plan file, and the fields that options add."""

    balance: NotRequired[Balance]
    change: NotRequired[Change]
    sharding_group_sizes: NotRequired[list[SizeOfGroups]]


class PlanCheck(Document):
    """`plan --check`."""

    plan: str
    cost_model: str
    step_ms: float
    embedding_cost_ms: float
    stated_step_ms: float | None
    same_cost: bool
    devices: list[DeviceCost]


class Attempt(Proof):
    """A strategy's plan; null if it has none."""

    strategy: str
    available: bool
    failed: str | None
    predicted_compute_ms: float | None
    measured_compute_ms: float | None
    embedding_cost_ms: float | None
    runs_on: list[str] | None
    search_s: float | None


class Elsewhere(TypedDict):
    """The best plan for the other runtime."""

    runs_on: str
    step_ms: float
    bound_ms: float | None
    bound_scope: str | None


class Compare(Document):
    """`compare`."""

    task: str
    cost_model: str
    strategies: list[Attempt]
    elsewhere: Elsewhere | None


class Demo(Document):
    """`demo`."""

    folder: str
    cost_model: str
    task: str
    strategies: list[Attempt]


class TableOfReview(TypedDict):
    """A table that the slowest devices work on."""

    table: str
    saves_ms: float
    now: str
    better: str
    moved_bytes: int


class PhaseOfReview(TypedDict):
    """A phase of a step on its slowest device, in both plans."""

    phase: str
    now_ms: float
    now_rank: int
    better_ms: float
    better_rank: int


class Review(Proof, Document):
    """`review`."""

    plan: str
    better_ms: float
    gain: float
    strategy: str
    elsewhere: Elsewhere | None
    fullest_bytes: int
    better_fullest_bytes: int
    phases: list[PhaseOfReview]
    moved_bytes: int
    kept_bytes: int
    tables: list[TableOfReview]
    measured_compute_ms: list[float] | None
    assumed: list[str]


class Size(TypedDict):
    """A size of the cluster."""

    hosts: int
    devices_per_host: int
    device: str
    batch_size: int
    why_no_plan: str | None
    step_ms: float | None
    bound_ms: float | None
    bound_scope: str | None
    samples_per_second: float | None
    most_samples_per_second: float | None
    efficiency: float | None
    memory_bytes: int | None
    cost_per_million: float | None
    least_cost_per_million: float | None


class Scale(Document):
    """`scale`."""

    task: str
    sizes: list[Size]
    no_faster_than_devices: int | None
    no_cheaper_than_devices: int | None


class DeviceOfShow(TypedDict):
    """Predicted times and memory of a device."""

    rank: int
    forward_ms: float
    forward_communication_ms: float
    backward_communication_ms: float
    backward_ms: float
    memory_bytes: int
    weight_bytes: int
    optimizer_bytes: int
    buffer_bytes: int
    limit_bytes: int


class TableOfBottleneck(TypedDict):
    """The time that a phase and its slowest device would save without a table."""

    table: str
    device_ms_less: float
    phase_ms_less: float


class BottleneckOfShow(TypedDict):
    """The slowest device of a phase."""

    phase: str
    rank: int
    ms: float
    mean_ms: float
    tables: list[TableOfBottleneck]


class TableOfShow(TypedDict):
    """A table of a plan."""

    table: str
    sharding_type: str
    rows: int
    dim: int
    features: int
    devices: list[int]
    ranks: str
    share_of_table: list[float]
    memory_bytes: int
    step_ms_without_it: float | None
    step_ms_less: float | None


class Show(Proof, Document):
    """`show`."""

    plan: str
    strategy: str
    cost_model: str
    embedding_cost_ms: float
    runs_on: list[str]
    devices: list[DeviceOfShow]
    bottlenecks: list[BottleneckOfShow]
    tables: list[TableOfShow]
    tuning: Tuning | None
    verdict: str


class PlanOfReport(Proof):
    """A plan of a report."""

    plan: str
    name: str
    runs_on: list[str]
    verdict: str
    measured_compute_ms: float | None
    measured_on: str | None
    notes: list[str]


class Report(Document):
    """`report`."""

    bytes: int | None
    plans: list[PlanOfReport]


class TableOfDrift(TypedDict):
    """A table's traffic, in the plan and in the logs."""

    table: str
    pooling_before: float
    pooling_now: float
    skew: float


class Drift(Document):
    """`drift`."""

    plan: str
    before_ms: float
    now_ms: float | None
    why_not: str | None
    better_ms: float | None
    gain: float | None
    worth_it: bool
    moved_bytes: int | None
    absent: list[str]
    unknown: list[str]
    tables: list[TableOfDrift]
