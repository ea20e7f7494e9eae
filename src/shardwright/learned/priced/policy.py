"""The policy as plain arrays: it places the units of a priced task one after another, several copies of a placement at once, by numpy.

    logit of a device = gain × -log(rise of Σ reference × (time / reference)^8)  +  30→32→32→1 · (device after the choice, unit)

The first term alone is a good rule, and the network starts from it. Units come longest first. Copies differ by Gumbel noise on the logits,
so they are samples of the policy; the first copy has none. The cost model's own prices choose among the copies.

Letters: k copies, n units, d devices, c fused calls, q numbers of a pricing vector; `FEATURES` and `FACTS` name the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.model import OPEN
from shardwright.cost.neuroshard.model import Shapes, layer_shapes
from shardwright.learned.policy_files import SavedPolicy
from shardwright.learned.priced.task import PHASES, PricedTask
from shardwright.tensor_files import check_weights

FEATURES = (
    *(f"{phase} with the unit" for phase in PHASES),
    *(f"{phase} before" for phase in PHASES),
    "rise of the 2nd powers", "rise of the 8th powers", "rise of the 28th powers",
    "rise of the step", "rise of the step above the references", "rise of kernels over the unit alone", "memory taken",
    "gates open", "gates to open", "time over the mean device",
)  # fmt: skip
"""What is seen of a device, over the references of the phases."""
FACTS = (
    *(f"{phase} of the unit alone" for phase in PHASES),
    *(f"part of {phase}" for phase in PHASES),
    "units before", "work left", "devices", "units a device", "even share over shares alone", "wide units left",
    "gates of the unit", "step",
)  # fmt: skip
"""What is the same for all devices at a step."""
HIDDEN = 32
FIRST_GAIN = 8.0
"""Gain before training."""
LOG_SCALE = 8.0
_LEAST_RISE, _FAR = 1e-9, 4.0
SHAPES: Shapes = {
    "gain": (1,),
    "device.weight": (HIDDEN, len(FEATURES)),
    "facts.weight": (HIDDEN, len(FACTS)),
    "facts.bias": (HIDDEN,),
    **layer_shapes("layers", (HIDDEN, HIDDEN, 1)),
}
"""Names and shapes of a policy's arrays."""


class PricedPolicy:
    """The arrays of a saved policy.

    Args:
        policy: the policy.

    Raises:
        InvalidInput: an array is missing, has another shape, or is not finite.
    """

    def __init__(self, policy: SavedPolicy) -> None:
        learn = f"learn it again with 'shardwright learn {policy.strategy}'"
        check_weights(policy.weights, SHAPES, f"{policy.strategy} policy", learn)
        w = {name: array.astype(np.float64) for name, array in policy.weights.items()}
        self._gain = float(w["gain"][0])
        self._device, self._facts, self._bias = w["device.weight"], w["facts.weight"].T, w["facts.bias"]
        self._between, self._between_bias = w["layers.0.weight"], w["layers.0.bias"][:, None]
        self._last = w["layers.1.weight"][0]

    def logits(self, seen: Floats, facts: Floats) -> Floats:
        """`(k, d)` logits from `(features, k, d)` and `(k, facts)`; the last bias is left out, as it is the same for all devices."""
        _, copies, devices = seen.shape
        hidden = self._device @ seen.reshape(len(seen), -1)
        by_copy = hidden.reshape(HIDDEN, copies, devices)
        by_copy += (facts @ self._facts + self._bias).T[:, :, None]
        np.maximum(hidden, 0.0, out=hidden)
        hidden = self._between @ hidden
        hidden += self._between_bias
        np.maximum(hidden, 0.0, out=hidden)
        found: Floats = (self._last @ hidden).reshape(copies, devices)
        found -= self._gain * LOG_SCALE * seen[RISE]
        return found


RISE = FEATURES.index("rise of the 8th powers")


class Floor:
    """The devices of k copies of a placement while they fill up. Times are over the references of their phases.

    Args:
        priced: the task.
        copies: number of copies, k.

    Attributes:
        assignment: `(k, n)` device of each unit; -1 before it is placed, or if no device had room.
        before: `(3, k, d)` times of the devices by phase.
        slowest: `(3, k)` the slowest device of each phase.
        parts: `(3,)` the phases' parts of all references.
    """

    def __init__(self, priced: PricedTask, copies: int) -> None:
        self._priced, self._pricing, self._rows = priced, priced.pricing, np.arange(copies)
        arrays, alone = priced.arrays, priced.alone()
        self._reference = reference = priced.references()
        self._over, self.parts = 1 / reference, reference / reference.sum()
        self._set_units(alone)
        self._rivals = bool(arrays.rivals.any())
        calls = np.where(priced.fixed_calls[..., None], self._pricing.times(priced.fixed_vectors), 0.0)
        start = np.column_stack([priced.kernels(priced.fixed_vectors, priced.fixed_calls), priced.fixed_links])
        self._sums, self._calls = (
            np.repeat(each[None], copies, axis=0) for each in (priced.fixed_vectors, calls * self._over[:2])
        )
        self.before = np.repeat((start * self._over).T[:, None], copies, axis=1)
        self._present: Bools = np.repeat(np.asarray(priced.fixed_calls.any(axis=1))[None], copies, axis=0)
        self._used: Ints = np.repeat(arrays.used[None], copies, axis=0)
        self._powers, self._now = self._powers_of(self.before), self._weighed(self.before)
        self._open = self._opened(self._sums)
        self.slowest = self.before.max(axis=2)
        self.assignment: Ints = np.full((copies, len(arrays)), -1, dtype=np.int64)
        self._room = 1 / np.maximum(arrays.memory, 1)
        self._links = priced.links * self._over[2]
        self._once = self._pricing.once * self._over[:2] if self._pricing.once.any() else None

    def _set_units(self, alone: Floats) -> None:
        """Set the inputs about units that are known before the first is placed."""
        priced, gates, q = self._priced, self._pricing.gates, self._priced.vectors.shape[2]
        self._gates = slice(q - 2 - 3 * gates, q - 2, 3)
        opens = (priced.vectors[..., self._gates] > OPEN).any(axis=1).sum(axis=1, dtype=np.float64)
        over, devices, n = alone * self._over, priced.arrays.devices, max(1, len(priced))
        self._kernels = alone[:, :2] @ self._over[:2] + 1e-12
        self._order = np.argsort(-alone.sum(axis=1), kind="stable")
        shares = alone[:, :2].sum() / devices + 1e-12
        facts = np.zeros((len(priced), len(FACTS)))
        facts[:, :3], facts[:, 3:6] = over, self.parts
        facts[:, 8:11] = np.log2(devices) / 5, np.log2(n / devices) / 4, priced.even()[:2].sum() / shares
        facts[:, 12] = opens / 3
        facts[self._order, 6] = np.arange(len(priced)) / n
        facts[self._order, 7] = np.cumsum((over @ self.parts)[self._order][::-1])[::-1] / devices
        facts[self._order, 11] = np.cumsum((opens > 0)[self._order][::-1])[::-1] / n
        self._facts = np.minimum(facts, _FAR)
        self._some = [_as_slice(np.flatnonzero(row)) for row in priced.calls]

    def order(self) -> Ints:
        """`(n,)` units by the sum of their phases alone, longest first."""
        return self._order

    def able(self, unit: int) -> Bools:
        """`(k, d)` which devices may take a unit."""
        arrays = self._priced.arrays
        able: Bools = arrays.allowed[unit] & (self._used + arrays.bytes[unit] <= arrays.memory)
        if self._rivals:
            theirs = self.assignment[:, arrays.rivals[unit]]
            rows, columns = np.nonzero(theirs >= 0)
            able[rows, theirs[rows, columns]] = False
        return able

    def look(self, unit: int) -> Look:
        """Price every device with a unit."""
        priced, some = self._priced, self._some[unit]
        sums = self._sums[:, :, some] + priced.vectors[unit, some]
        calls = self._pricing.times(sums)
        calls *= self._over[:2]
        rise = calls - self._calls[:, :, some]
        after = self.before.copy()
        after[:2] += np.moveaxis(rise[:, :, 0] if rise.shape[2] == 1 else rise.sum(axis=2), 2, 0)
        if self._once is not None:
            after[:2] += self._once[:, None, None] * ~self._present
        after[2] += self._links[unit]
        return Look(unit, some, sums, calls, after, self._powers_of(after), self._weighed(after))

    def _weighed(self, times: Floats) -> Floats:
        """`(k, d)` sums over phases of `(3, k, d)` times, each times its part."""
        found: Floats = (self.parts @ times.reshape(3, -1)).reshape(times.shape[1:])
        return found

    def _powers_of(self, times: Floats) -> Floats:
        """`(3, k, d)` sums of the phases' 2nd, 8th and 28th powers, each times its part."""
        two = times * times
        most = two * two
        eight = most * most
        for _ in range(3):
            most *= eight
        found = np.empty_like(times)
        for place, power in enumerate((two, eight, most)):
            found[place] = self._weighed(power)
        return found

    def _opened(self, sums: Floats) -> Floats:
        """`(k, d)` share of the gates that are open in `(k, d, calls, q)` sums."""
        if not self._pricing.gates:
            return np.zeros(sums.shape[:2])
        found: Floats = (sums[..., self._gates] > OPEN).sum(axis=(2, 3)) / self._pricing.gates
        return found

    def seen(self, look: Look) -> tuple[Floats, Floats]:
        """`(features, k, d)` and `(k, facts)` inputs of the policy."""
        unit, after, before = look.unit, look.after, self.before
        seen = np.empty((len(FEATURES), *after.shape[1:]))
        seen[:3], seen[3:6] = after, before
        rises = seen[6:9]
        np.maximum(np.subtract(look.powers, self._powers, out=rises), _LEAST_RISE, out=rises)
        np.log(rises, out=rises)
        rises /= LOG_SCALE
        slowest = self.slowest[..., None]
        seen[9] = self._weighed(np.maximum(after, slowest))
        seen[10] = self._weighed(np.maximum(after, np.maximum(slowest, 1.0)))
        seen[9:11] -= seen[9:11].min(axis=2, keepdims=True)
        seen[11] = (after[0] + after[1] - before[0] - before[1]) / self._kernels[unit]
        seen[12] = (self._used + self._priced.arrays.bytes[unit]) * self._room
        seen[13], seen[14] = self._open, 0.0
        if self._pricing.gates:
            seen[14] = self._opened(look.sums) - self._opened(self._sums[:, :, look.some])
        seen[15] = look.now - self._now.mean(axis=1, keepdims=True)
        np.minimum(seen, _FAR, out=seen)
        facts = np.repeat(self._facts[unit][None], len(self._rows), axis=0)
        facts[:, 13] = np.minimum(self.step, _FAR)
        return seen, facts

    def place(self, look: Look, device: Ints, able: Bools) -> None:
        """Place the unit of a look on `(k,)` devices; copies in which the device is not able leave it unplaced."""
        rows = self._rows[able[self._rows, device]]
        to = device[rows]
        at = (rows, to, look.some) if isinstance(look.some, slice) else (rows[:, None], to[:, None], look.some)
        self._sums[at], self._calls[at] = look.sums[rows, to], look.calls[rows, to]
        after = look.after[:, rows, to]
        self.before[:, rows, to], self._powers[:, rows, to] = after, look.powers[:, rows, to]
        self._now[rows, to] = look.now[rows, to]
        self.slowest[:, rows] = np.maximum(self.slowest[:, rows], after)
        self._used[rows, to] += self._priced.arrays.bytes[look.unit]
        self._present[rows, to] = True
        if self._pricing.gates:
            self._open[rows, to] = self._opened(self._sums[rows, to][:, None])[:, 0]
        self.assignment[rows, look.unit] = to

    @property
    def whole(self) -> Bools:
        """`(k,)` whether every unit has a device."""
        found: Bools = np.asarray((self.assignment >= 0).all(axis=1))
        return found

    @property
    def step(self) -> Floats:
        """`(k,)` kernels and links of the step over all references, without the latencies of collectives, which are the same for all."""
        found: Floats = self.parts @ self.slowest
        return found


def _as_slice(numbers: Ints) -> slice | Ints:
    """A single number as a slice, which arrays are read by without a copy."""
    return slice(int(numbers[0]), int(numbers[0]) + 1) if len(numbers) == 1 else numbers


@dataclass(frozen=True, eq=False)
class Look:
    """What the devices would be with a unit.

    Attributes:
        unit: the unit.
        some: numbers of its fused calls, s of them.
        sums: `(k, d, s, q)` sums of vectors.
        calls: `(k, d, s, 2)` times of these calls.
        after: `(3, k, d)` times of the devices by phase.
        powers: `(3, k, d)` sums of powers of these.
        now: `(k, d)` times of all phases together.
    """

    unit: int
    some: slice | Ints
    sums: Floats
    calls: Floats
    after: Floats
    powers: Floats
    now: Floats


def place(
    policy: PricedPolicy, priced: PricedTask, noise: np.random.Generator | None, copies: int, order: Ints | None = None
) -> Floor:
    """Place the units of a task.

    Args:
        policy: the policy.
        priced: the task.
        noise: draws the noise of all copies but the first; None for none.
        copies: number of copies.
        order: units in the order of placement; by default longest first.
    """
    floor = Floor(priced, copies)
    for unit in (floor.order() if order is None else order).tolist():
        look, able = floor.look(unit), floor.able(unit)
        logits = policy.logits(*floor.seen(look))
        if noise is not None:
            logits[1:] += noise.gumbel(size=logits[1:].shape)
        floor.place(look, np.where(able, logits, -np.inf).argmax(axis=1), able)
    return floor
