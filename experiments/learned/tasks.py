"""The tasks of the experiments on learned placement: DreamShard's tasks, at the batch size of the bundled CPU model.

Tables come from the pool "dlrm-2021", each at most once per task: dim 16, fp32, batch 1,024, 5 GB per device, every table whole. Half of
the tables are for training, the other half for testing (`split_pool(pool, 0.5)`), so that a test task has no table that training saw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.entrants import LEARNED, SORTED, Entrant, Limits, entrant
from shardwright.cost.ledger import EncodedBlocks
from shardwright.cost.model import CostModel, Pricing
from shardwright.errors import InvalidInput
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.rnn import Rnn, RnnOptions
from shardwright.sharding.work import shard_work
from shardwright.task import Constraints, Table, TableConstraint, Task
from shardwright.workload import random_task, split_pool

POOL, DIM, BATCH, MEMORY = "dlrm-2021", 16, 1024, "5 GB"
TEST_SEED, TRAIN_SEED, VALIDATION_SEED = 2022, 0, 1
"""A task depends only on one of these seeds, its setting and its number."""


@dataclass(frozen=True)
class Setting:
    """A kind of tasks.

    Attributes:
        tables: number of tables of a task.
        devices: number of devices of a task.
    """

    tables: int
    devices: int

    @property
    def name(self) -> str:
        """For example "DLRM-50 × 4"."""
        return f"DLRM-{self.tables} × {self.devices}"

    @classmethod
    def of(cls, text: str) -> Setting:
        """The setting of a text such as "50x4"."""
        tables, devices = text.split("x")
        return cls(int(tables), int(devices))


def draw_task(setting: Setting, number: int, *, seed: int = TEST_SEED, unseen: float = 1.0) -> Task:
    """A task of a setting.

    Args:
        setting: numbers of tables and devices.
        number: number of the task.
        seed: `TEST_SEED`, `TRAIN_SEED` or `VALIDATION_SEED`; tasks of different seeds are different draws.
        unseen: probability of each table to come from the half for testing, else from the half for training.
    """
    rng = np.random.default_rng([seed, setting.tables, setting.devices, number])
    task = random_task(
        rng, pool=pool(unseen, rng, setting.tables), tables=setting.tables, devices=setting.devices, dims=(DIM,), memory=MEMORY,
        batch_size=BATCH, device="cpu", replacement=False, fill=None,
    )  # fmt: skip
    return whole(task)


def draw_tasks(setting: Setting, count: int, *, seed: int = TEST_SEED, unseen: float = 1.0) -> list[Task]:
    """The first `count` tasks of a setting."""
    return [draw_task(setting, number, seed=seed, unseen=unseen) for number in range(count)]


def pool(unseen: float, rng: np.random.Generator, tables: int) -> tuple[Table, ...]:
    """One half of the pool; or `tables` tables of both halves, each from the half for testing with probability `unseen`."""
    train, test = halves()
    if unseen in (0.0, 1.0):
        return test if unseen else train
    from_test = int(rng.binomial(tables, unseen))
    picked = [
        half[index]
        for half, count in ((train, tables - from_test), (test, from_test))
        for index in rng.choice(len(half), count, replace=False)
    ]
    return tuple(picked)


def whole(task: Task) -> Task:
    """The task, limited to plans that keep every table whole."""
    limit = TableConstraint(sharding_types=("table_wise",))
    return replace(task, constraints=Constraints({table.name: limit for table in task.tables}))


@cache
def halves() -> tuple[tuple[Table, ...], tuple[Table, ...]]:
    """Tables for training and for testing."""
    return split_pool(POOL, 0.5)


RNN = "rnn"
UPDATES = RnnOptions.updates
"""Default number of updates of `rnn` on a task."""
_LIMITS = Limits()
NAMES = ("random", *SORTED, "greedy", RNN, *LEARNED, "neuroshard", "certified")


def learned_entrant(
    name: str, limits: Limits = _LIMITS, *, rnn_updates: int = UPDATES, policy: Path | None = None
) -> Entrant:
    """The entrant for a strategy name.

    Args:
        name: name in `NAMES`.
        limits: limits of the searches.
        rnn_updates: updates of `rnn` on each task.
        policy: policy file for a strategy that places by a policy; by default the bundled one.
    """
    if name == RNN:
        return Entrant(Rnn(RnnOptions(updates=rnn_updates)), f"{rnn_updates} updates")
    return entrant(name, limits, policy=policy)


@cache
def load_rnn() -> None:
    """Load the libraries of `rnn` once per process, so that no search time includes the loading."""
    import shardwright as sw

    sw.plan(draw_task(Setting(8, 2), 0), strategy=Rnn(RnnOptions(updates=1)))


Floats = npt.NDArray[np.float64]


def compute_bound(task: Task, cost_model: CostModel) -> float:
    """A lower bound in ms on the forward and backward kernels of any plan's slowest device.

    A device's time is the sum of a convex f over its fused calls c, each with a sum of encodings z_c. Let P(z) = f(0) + Σ_c (f(z_c) -
    f(0)). On a device in use, P is no more than its time (see `search.bound`). With whole tables and k of D devices in use:

    - max P(z_d) ≥ mean P(z_d) ≥ P(Σ z / k) by Jensen; the smallest of these over k = 1 … D holds for every k.
    - The device that holds table i costs at least P(z_i) + Σ over the other tables of min(0, ∇P(z_i) · z_j), as P lies above its tangents.
      If no table makes a device cheaper, this is P(z_i), the cost of the table alone.

    Raises:
        InvalidInput: the cost model is not convex, or a table of the task must be cut.
    """
    arrays = PlacementArrays.of(task)
    blocks = [block for unit in arrays.units.free for block in unit.blocks]
    if not cost_model.pricing.convex or len(blocks) != len(task.tables):
        raise InvalidInput(
            "the bound on kernel times needs a convex cost model and tables that stay whole; choose a convex model, and allow "
            "table_wise alone"
        )
    works = [shard_work(task, block) for block in blocks]
    ledger = EncodedBlocks.of(cost_model, works).ledger(len(arrays))
    ledger.add(arrays.unit_of, np.arange(len(works)))
    units = ledger.sums
    return max(_shared(units, arrays.devices, cost_model.pricing), _alone(units, cost_model.pricing))


def _in_use(times: Floats, pricing: Pricing) -> Floats:
    """`(n,)` least ms of n devices in use, from the head's `(n, calls, 2)` times for all calls, made or not."""
    empty = pricing.price(np.zeros(pricing.linear.shape[1]))
    least: Floats = (times.sum(axis=1) - (times.shape[1] - 1) * empty + pricing.once).sum(axis=1)
    return least


def _shared(units: Floats, devices: int, pricing: Pricing) -> float:
    """The bound from an even share of everything."""
    used = np.arange(1, min(devices, len(units)) + 1)[:, None, None]
    return float(_in_use(pricing.price(units.sum(axis=0) / used), pricing).min())


def _alone(units: Floats, pricing: Pricing) -> float:
    """The bound from single units."""
    before = units @ pricing.hidden.T + pricing.hidden_bias
    times = np.maximum(before, 0.0) @ pricing.mix.T + units @ pricing.linear.T + pricing.bias
    # Slopes of the tangents of both outputs, `(n, calls, latent)` each; an output counts only where it is positive.
    slopes = np.stack([(before > 0) * pricing.mix[i] @ pricing.hidden + pricing.linear[i] for i in range(2)], axis=2)
    slope = ((times > 0)[..., None] * slopes).sum(axis=2)
    discount = np.minimum(slope.reshape(len(units), -1) @ units.reshape(len(units), -1).T, 0.0)
    np.fill_diagonal(discount, 0.0)
    return float((_in_use(np.maximum(times, 0.0), pricing) + discount.sum(axis=1)).max())
