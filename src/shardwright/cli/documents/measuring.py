"""Documents of commands that measure, train and learn."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from shardwright.cli.documents.planning import PlanFile
from shardwright.cli.output import Document
from shardwright.modelling.accuracy import Accuracy
from shardwright.sharding.costs import Tuning
from shardwright.task.link_files import Cluster, LinkErrors


class TableOfProfile(TypedDict):
    """A table that a column of a log makes."""

    name: str
    rows: int
    dim: int
    pooling: float
    pooled: bool
    lookups: int
    distinct: int
    distinct_error: float | None
    max_id: int | None
    hottest_percent_share: float | None
    id_shares: list[float]


class Doubt(TypedDict):
    """A column that may hold no ids."""

    column: str
    reason: str
    bytes: int


class RankMapOfProfile(TypedDict):
    """Rows of a table, and how many of them have a rank."""

    rows: int
    ids: int


class Profile(Document):
    """`profile`."""

    files: int
    log_rows: int
    samples: int
    lookups: int
    tables: list[TableOfProfile]
    left_out: dict[str, str]
    doubts: list[Doubt]
    next: str
    rank_maps: NotRequired[dict[str, RankMapOfProfile]]


class Calibrate(Document):
    """`calibrate`."""

    model: str | None
    metadata: dict[str, str]
    accuracy: Accuracy | None
    error_before: float | None
    recipe: str
    sets: int
    new_sets: int
    failed: list[str]
    stopped: str
    seconds: float
    controls_slower: float | None


class CalibrateLinks(Document):
    """`calibrate --links`."""

    file: str
    cluster: Cluster
    links: dict[str, Any]
    errors: dict[str, dict[str, LinkErrors]]


class CollectCollectives(Document):
    """`collect --collectives`."""

    folder: str
    samples: int
    measured: int
    seconds: float
    repeat_median: float | None
    repeat_mean: float | None


class Collect(CollectCollectives):
    """`collect`."""

    disturbed: float | None
    wanted: int
    failed: int
    spent: dict[str, float]
    failure: str


class Learn(Document):
    """`learn`: each row of figures has the iteration, and the figures of the training at that point."""

    strategy: str
    metadata: dict[str, Any]
    figures: list[dict[str, float | None]]


class Model(TypedDict):
    """A cost model."""

    name: str
    bundled: bool
    origin: str
    file: str | None
    bytes: int | None
    metadata: dict[str, str]


class Models(Document):
    """`models` and `models show`."""

    models: list[Model]


class ModelsRemove(Document):
    """`models remove`."""

    removed: list[Model]


class Train(Document):
    """`train`: errors of communication by devices and pass."""

    metadata: dict[str, str]
    epochs: int
    accuracy: Accuracy
    communication: dict[str, dict[str, dict[str, float]]]


class Corrections(TypedDict):
    """How a tuning corrected its model."""

    forward_scale: float
    backward_scale: float
    cut_ms: float


class Tune(Document):
    """`tune`."""

    tuning: Tuning | None
    above_floor: float | None
    stopped: str
    seconds: float
    controls_slower: float | None
    model: str | None
    corrections: Corrections | None
    corrected_bound_ms: float | None
    failed: list[str]
    plan: PlanFile


class CandidateOfTune(TypedDict):
    """A plan that `tune --steps` measured."""

    name: str
    predicted_step_ms: float | None
    step_ms: float
    rounds_ms: list[float]
    against_default: float | None
    noise: float | None


class TuneSteps(Document):
    """`tune --steps`."""

    taken: str
    candidates: list[CandidateOfTune]
    ranks_on: str
    stopped: str
    seconds: float
    plan: PlanFile


class DeviceOfVerify(TypedDict):
    """Times of a device's kernels."""

    rank: int
    predicted_forward_ms: float | None
    predicted_backward_ms: float | None
    measured_forward_ms: float
    measured_backward_ms: float


class Verify(Document):
    """`verify`."""

    plan: str
    predicted_compute_ms: float | None
    measured_compute_ms: float
    relative_difference: float | None
    tolerance: float | None
    within_tolerance: bool | None
    devices: list[DeviceOfVerify]
    measured_on: str
    controls_slower: NotRequired[float | None]


class PhaseOfSteps(TypedDict):
    """A phase of a step, and its time in each round."""

    predicted_ms: float | None
    measured_ms: float
    rounds_ms: list[float]


class RankOfSteps(TypedDict):
    """Memory of a rank, as trained and by the account."""

    rank: int
    weights_bytes: int
    account_weights_bytes: int
    optimizer_bytes: int
    account_optimizer_bytes: int


class PlanOfSteps(TypedDict):
    """A plan that was trained."""

    name: str
    runs_on: str
    step_ms: float
    predicted_step_ms: float | None
    spread: float | None
    phases: dict[str, PhaseOfSteps]
    ranks: list[RankOfSteps]


class VerifySteps(Document):
    """`verify --steps`."""

    plan: str
    ranks_on: str
    plans: list[PlanOfSteps]
