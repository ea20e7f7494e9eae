"""The policy as plain arrays: it places the units of a priced task one after another, several copies of a placement at once.

    logit of a device = gain × -log(rise of Σ reference × (time / reference)^8)  +  34→32→32→1 · (device after the choice, unit)

The first term alone is a good rule, and the network starts from it. Units come longest first. Copies differ by Gumbel noise on the logits,
so they are samples of the policy; the first copy has none. The cost model's own prices choose among the copies. The loop over the units is
in `native/policy.hpp`; training records its inputs and logits there.

Letters: k copies, n units, d devices; `FEATURES` and `FACTS` name the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright._engine import place_by_policy
from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.model import OPEN
from shardwright.cost.neuroshard.model import Shapes, layer_shapes
from shardwright.learned.policy_files import SavedPolicy
from shardwright.learned.priced.task import PHASES, PricedTask
from shardwright.tensor_files import check_weights

Floats32: TypeAlias = npt.NDArray[np.float32]

FEATURES = (
    *(f"{phase} with the unit" for phase in PHASES),
    *(f"{phase} before" for phase in PHASES),
    "rise of the 2nd powers", "rise of the 8th powers", "rise of the 28th powers",
    "rise of the step", "rise of the step above the references", "rise of kernels over the unit alone", "memory taken",
    "gates open", "gates to open", "time over the mean device",
)  # fmt: skip
"""The policy's inputs about a device; times are over the references of the phases."""
FACTS = (
    *(f"{phase} of the unit alone" for phase in PHASES),
    *(f"part of {phase}" for phase in PHASES),
    "units before", "work left", "devices", "units a device", "even share over shares alone", "wide units left",
    "gates of the unit", "step",
)  # fmt: skip
"""The policy's inputs that are the same for all devices at a step."""
HIDDEN = 32
FIRST_GAIN = 8.0
"""Gain before training."""
LOG_SCALE = 8.0
_FAR = 4.0
SHAPES: Shapes = {
    "gain": (1,),
    "device.weight": (HIDDEN, len(FEATURES)),
    "facts.weight": (HIDDEN, len(FACTS)),
    "facts.bias": (HIDDEN,),
    **layer_shapes("layers", (HIDDEN, HIDDEN, 1)),
}
"""Names and shapes of a policy's arrays."""


class Layers(NamedTuple):
    """The arrays of a policy; see `native/policy.hpp`."""

    gain: float
    device: Floats32
    facts: Floats32
    bias: Floats32
    between: Floats32
    between_bias: Floats32
    last: Floats32


class PricedPolicy:
    """The arrays of a saved policy.

    Attributes:
        layers: the arrays.

    Raises:
        InvalidInput: an array is missing, has another shape, or is not finite.
    """

    def __init__(self, policy: SavedPolicy) -> None:
        learn = f"learn it again with 'shardwright learn {policy.strategy}'"
        check_weights(policy.weights, SHAPES, f"{policy.strategy} policy", learn)
        w = {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in policy.weights.items()}
        self.layers = Layers(
            gain=float(w["gain"][0]),
            device=w["device.weight"],
            facts=w["facts.weight"],
            bias=w["facts.bias"],
            between=w["layers.0.weight"],
            between_bias=w["layers.0.bias"],
            last=w["layers.1.weight"][0],
        )


RISE = FEATURES.index("rise of the 8th powers")


@dataclass(frozen=True, eq=False)
class Placements:
    """k copies of a placement. Times are over the references of their phases.

    Attributes:
        assignment: `(k, n)` device of each unit; -1 if no device was able to take it.
        times: `(k, d, 4)` times of the devices by phase.
        parts: `(4,)` the phases' parts of all references.
        seen: `(t, k, d, features)` inputs at each step, if recorded.
        facts: `(t, k, facts)` the same for all devices.
        logits: `(t, k, d)` of the devices; -inf for one that was not able to take the unit.
        slowest: `(t + 1, k, 4)` the slowest device of each phase before and after each step.
    """

    assignment: Ints
    times: Floats
    parts: Floats
    seen: Floats32
    facts: Floats32
    logits: Floats
    slowest: Floats

    @property
    def whole(self) -> Bools:
        """`(k,)` whether every unit has a device."""
        return np.asarray((self.assignment >= 0).all(axis=1))

    @property
    def step(self) -> Floats:
        """`(k,)` kernels and links of the step over all references, without the latencies of collectives, which are the same for all."""
        return np.asarray(self.times.max(axis=1) @ self.parts)


def longest_first(priced: PricedTask) -> Ints:
    """`(n,)` units by the time of their kernels alone and of their own traffic, longest first."""
    alone = priced.kernels(priced.vectors, priced.calls).sum(axis=1) + priced.links.sum(axis=1)
    return np.argsort(-alone, kind="stable")


def place(
    policy: PricedPolicy,
    priced: PricedTask,
    noise: np.random.Generator | None,
    copies: int,
    order: Ints | None = None,
    *,
    record: bool = False,
) -> Placements:
    """Place the units of a task.

    Args:
        policy: the policy.
        priced: the task.
        noise: draws the noise of all copies but the first, and of the first too if they are recorded; None for none.
        copies: number of copies.
        order: units in the order of placement; by default longest first.
        record: whether to keep inputs and logits, for a training.
    """
    n, devices, longest = len(priced), priced.arrays.devices, longest_first(priced)
    before = _before(priced, longest)
    noisy = 0 if noise is None else copies if record else copies - 1
    drawn = np.zeros((n, 0, devices)) if noise is None else noise.gumbel(size=(n, noisy, devices))
    placed = place_by_policy(policy.layers, priced, before, longest if order is None else order, drawn, copies, record)
    return Placements(placed[0], placed[1], before.parts, *placed[2:])


class Before(NamedTuple):
    """What is known before the first unit is placed; see `native/policy.hpp`.

    Attributes:
        over: `(4,)` 1 over the references of the phases.
        parts: `(4,)` the phases' parts of all references.
        facts: `(n, facts)` of each unit, as far as they are known.
        kernels: `(n,)` kernels of a unit alone, over the references.
    """

    over: Floats
    parts: Floats
    facts: Floats
    kernels: Floats


def _before(priced: PricedTask, longest: Ints) -> Before:
    reference, alone, even = priced.references(), priced.kernels(priced.vectors, priced.calls), priced.even()
    parts, over = reference / reference.sum(), 1 / reference
    gates, q = priced.pricing.gates, priced.vectors.shape[2]
    opens = (priced.vectors[..., q - 2 - 3 * gates : q - 2 : 3] > OPEN).any(axis=1).sum(axis=1, dtype=np.float64)
    devices, n = priced.arrays.devices, max(1, len(priced))
    own = np.column_stack([alone, priced.links[:, 0] + priced.links[:, 1], priced.links[:, 2]]) * over
    facts = np.zeros((len(priced), len(FACTS)))
    facts[:, :4], facts[:, 4:8] = own, parts
    facts[:, 10:13] = np.log2(devices) / 5, np.log2(n / devices) / 4, even[:2].sum() / (alone.sum() / devices + 1e-12)
    facts[:, 14] = opens / 3
    facts[longest, 8] = np.arange(len(priced)) / n
    facts[longest, 9] = np.cumsum((own @ parts)[longest][::-1])[::-1] / devices
    facts[longest, 13] = np.cumsum((opens > 0)[longest][::-1])[::-1] / n
    kernels = alone @ over[:2] + 1e-12
    return Before(over, parts, np.minimum(facts, _FAR), kernels)
