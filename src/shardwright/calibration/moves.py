"""Find plans a few moves away from a measured plan; the model predicts only the changes.

A device that keeps its shards keeps its measured time. A changed device takes its measured time plus the predicted difference: the
model's error on the shards that stay is in both predictions, and cancels. So predictions for few moves are the most accurate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.for_task import for_task
from shardwright.cost.ledger import EncodedBlocks
from shardwright.cost.model import CostModel
from shardwright.cost.score import communication_ms, compute_ms
from shardwright.errors import InvalidPlan
from shardwright.sharding.checking import check_plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWorks
from shardwright.task.task import Task

_POWER = 24.0  # exponent of the power mean that replaces the maximum: a move then helps even if another device is equally slow
_SLOWEST = 3  # slowest devices of each pass, from which shards are taken
_MOST_SWAPS = 20_000
_CHECKED = 12  # best changes to check for links, memory and constraints
_NARROWEST = 4  # fewest columns of a block
_NONE = -1


@dataclass(frozen=True)
class _Change:
    """One move: a shard, or half of it, goes from one device to another, or two shards swap devices.

    Attributes:
        devices: the two devices.
        lost: index among the pieces of the shard that each device gives away; `_NONE` for none.
        got: index among the pieces of the shard that each device gets; `_NONE` for none.
    """

    devices: tuple[int, int]
    lost: tuple[int, int]
    got: tuple[int, int]


class Moves:
    """Searches for better plans by moves from a measured plan.

    Args:
        task: the task that plans must satisfy.
        model: predicts the effect of a move.
        shards: the measured plan.
        kernels: `(devices, 2)` measured forward and backward kernel ms of the plan.
    """

    def __init__(self, task: Task, model: CostModel, shards: Sequence[Shard], kernels: Floats) -> None:
        self._task, self._model = task, for_task(model, task)
        self._works = ShardWorks(task)
        self._error = kernels - compute_ms(task, shards, model)
        self._start = list(shards)

    def promised_ms(self, shards: Sequence[Shard]) -> float:
        """Step ms of a plan: the measured times plus the predicted difference."""
        return float(self._times(shards).max(axis=0).sum()) + self._links_ms(shards)

    def best(self, count: int) -> list[Shard] | None:
        """The shards after up to `count` moves, each the best at that point; stops when no move helps; None if the first does not."""
        shards = self._start
        for _ in range(count):
            moved = self._moved(shards)
            if moved is None:
                break
            shards = moved
        return None if shards is self._start else shards

    def _times(self, shards: Sequence[Shard]) -> Floats:
        """`(devices, 2)` kernel ms: the measured times plus the predicted difference."""
        return np.maximum(compute_ms(self._task, shards, self._model) + self._error, 0.0)

    def _links_ms(self, shards: Sequence[Shard]) -> float:
        return sum(float(part.max()) for part in communication_ms(self._task, shards))

    def _moved(self, shards: list[Shard]) -> list[Shard] | None:
        """The shards after the best move; None if no move helps."""
        times = self._times(shards)
        slow = sorted({int(device) for phase in (0, 1) for device in np.argsort(-times[:, phase])[:_SLOWEST]})
        pieces = list(shards)
        changes = list(self._changes(shards, slow, pieces))
        if not changes:
            return None
        values = _soft(self._priced(changes, shards, pieces, times))
        less = (float(_soft(times[None])[0]) + self._links_ms(shards)) * (1 - 1e-6)
        for place in np.argsort(values)[:_CHECKED]:
            moved = _applied(changes[place], shards, pieces)
            if values[place] + self._links_ms(moved) < less and self._valid(moved):
                return moved
        return None

    def _valid(self, shards: Sequence[Shard]) -> bool:
        try:
            check_plan(self._task, shards)
        except InvalidPlan:
            return False
        return True

    def _changes(self, shards: Sequence[Shard], slow: Sequence[int], pieces: list[Shard]) -> Iterator[_Change]:
        """Changes that take work off slow devices; new blocks are appended to `pieces`."""
        single = [place for place, shard in enumerate(shards) if len(shard.devices) == 1]
        of_table: dict[str, list[int]] = {}
        for place in single:
            of_table.setdefault(shards[place].table, []).append(place)
        origins = [place for place in single if shards[place].devices[0] in slow]
        for place in origins:
            yield from self._moves(place, shards, of_table[shards[place].table], pieces)
        pairs = ((a, b) for a in origins for b in single if shards[a].devices != shards[b].devices)
        for _, (a, b) in zip(range(_MOST_SWAPS), pairs, strict=False):
            yield _Change((shards[a].devices[0], shards[b].devices[0]), (a, b), (b, a))

    def _moves(
        self, place: int, shards: Sequence[Shard], of_table: Sequence[int], pieces: list[Shard]
    ) -> Iterator[_Change]:
        """Moves of a shard, or half of its columns, to each other device; a whole shard merges with an adjacent block that is there."""
        shard, device = shards[place], shards[place].devices[0]
        halves = _halved(shard)
        if halves is not None:
            pieces.extend(halves)
        ends = len(pieces)
        for target in range(self._task.topology.devices):
            if target == device:
                continue
            beside, got = _NONE, place
            for other in of_table:
                joined = _joined(shard, shards[other]) if shards[other].devices == (target,) else None
                if joined is not None:
                    pieces.append(joined)
                    beside, got = other, len(pieces) - 1
            yield _Change((device, target), (place, beside), (_NONE, got))
            if halves is not None:
                yield _Change((device, target), (place, _NONE), (ends - 2, ends - 1))

    def _priced(
        self, changes: Sequence[_Change], shards: Sequence[Shard], pieces: Sequence[Shard], times: Floats
    ) -> Floats:
        """`(changes, devices, 2)` kernel times after each change."""
        works = [self._works.of(piece) for piece in pieces]
        encoded = EncodedBlocks.of(self._model, works)
        alone, ledger = encoded.ledger(len(works) + 1), encoded.ledger(self._task.topology.devices)
        alone.add(np.arange(len(works)), np.arange(len(works)))  # the last row stands for no shard
        for place, shard in enumerate(shards):
            ledger.add(np.array(shard.devices), np.full(len(shard.devices), place))
        devices, lost, got = (
            np.array([getattr(move, name) for move in changes]) for name in ("devices", "lost", "got")
        )
        after = ledger.sums[devices] + alone.sums[got] - alone.sums[lost]
        present = ledger.counts[devices] + alone.counts[got] - alone.counts[lost] > 0
        priced = self._model.pricing.devices(after, present) + self._error[devices]
        result = np.repeat(times[None], len(changes), axis=0)
        result[np.arange(len(changes))[:, None], devices] = np.maximum(priced, 0.0)
        return result


def _soft(times: Floats) -> Floats:
    """`(n,)` step ms of `(n, devices, 2)` times, with power means over the devices instead of maxima."""
    top = times.max(axis=1, keepdims=True)
    shares: Floats = (times / np.maximum(top, 1e-12)) ** _POWER
    ms: Floats = (top[:, 0] * shares.mean(axis=1) ** (1 / _POWER)).sum(axis=1)
    return ms


def _applied(change: _Change, shards: Sequence[Shard], pieces: Sequence[Shard]) -> list[Shard]:
    """The shards after a change."""
    kept = [shard for place, shard in enumerate(shards) if place not in change.lost]
    return kept + [
        replace(pieces[place], devices=(device,))
        for place, device in zip(change.got, change.devices, strict=True)
        if place != _NONE
    ]


def _halved(shard: Shard) -> tuple[Shard, Shard] | None:
    """Two blocks of about half the columns each, cut at a multiple of `_NARROWEST`; None if the shard has too few columns."""
    start, stop = shard.columns
    middle = start + (stop - start) // 2 // _NARROWEST * _NARROWEST
    if middle == start:
        return None
    return replace(shard, columns=(start, middle)), replace(shard, columns=(middle, stop))


def _joined(shard: Shard, target: Shard) -> Shard | None:
    """Both blocks merged, on the device of `target`; None if their columns are not adjacent or they differ otherwise."""
    if shard.rows != target.rows or shard.row_order != target.row_order or shard.tier != target.tier:
        return None
    first, second = sorted((shard, target), key=lambda shard: shard.columns)
    if first.columns[1] != second.columns[0]:
        return None
    return replace(target, columns=(first.columns[0], second.columns[1]))
