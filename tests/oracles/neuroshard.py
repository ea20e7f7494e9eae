"""NeuroShard's search written down plainly, step by step as in the paper and its public code: slow, and easy to check by eye.

It shares nothing with the shipped search but the cost model and the data types. Like it, it compares predicted times in whole ns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.cost.score import communication_ms
from shardwright.search.units import take_apart
from shardwright.sharding.memory import memory_account, shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import Call, ShardWork, call_of, shard_work
from shardwright.task.task import Task


class Piece(NamedTuple):
    unit: int
    dim: int


def nanoseconds(ms: float) -> int:
    return round(ms * 1e6)


@dataclass
class Oracle:
    task: Task
    cost_model: CostModel
    tables_tried: int = 10  # N
    beam_width: int = 3  # K
    most_splits: int = 10  # L
    grid: int = 11  # M
    widest_bound: float = 1.5
    score_by: str = "embedding"
    cut_large: bool = True
    predictions: dict = field(default_factory=dict)  # the cache

    def __post_init__(self) -> None:
        units = take_apart(self.task, cut_large=self.cut_large)
        self.free, self.fixed = units.free, units.fixed
        self.devices = range(self.task.topology.devices)
        self.apart = self.task.constraints.apart_pairs()
        works = [shard_work(self.task, shard) for shard in self.fixed]
        self.fixed_codes = self.encoded(works) if works else []
        self.fixed_bytes = memory_account(self.task, self.fixed).total
        dims = sum(p.dim for p in self.whole()) + sum(s.dim * len(s.devices) for s in self.fixed)
        self.mean_dim = dims / len(self.devices)

    # The outer search

    def search(self) -> list[Shard] | None:
        """The shards of the best placement; None if none was found."""
        placement, cost = self.inner(self.whole())
        best = (cost, self.whole(), placement)
        beam = [(cost, self.whole())]
        for _ in range(self.most_splits):
            splits: dict[frozenset, tuple[float, list[Piece]]] = {}
            for _, pieces in beam:
                for piece in self.candidates(pieces):
                    split = self.in_order(self.split(pieces, piece))
                    key = frozenset(Counter(split).items())
                    if key in splits:
                        continue
                    placement, cost = self.inner(split)
                    splits[key] = (cost, split)
                    if cost < best[0]:
                        best = (cost, split, placement)
            if not splits:
                break
            beam = sorted(splits.values(), key=lambda entry: entry[0])[: self.beam_width]
        cost, pieces, placement = best
        return None if placement is None else self.joined(pieces, placement, cost)

    def whole(self) -> list[Piece]:
        return self.in_order([Piece(i, sum(b.dim for b in unit.blocks)) for i, unit in enumerate(self.free)])

    def in_order(self, pieces: list[Piece]) -> list[Piece]:
        return sorted(pieces, key=lambda p: (-self.single_cost(p), p.unit, -p.dim))

    def candidates(self, pieces: list[Piece]) -> list[Piece]:
        """The N largest by cost and the N largest by size that can be halved, costliest first."""
        by_size = sorted(pieces, key=lambda p: -self.size(p))
        tried = set(pieces[: self.tables_tried]) | set(by_size[: self.tables_tried])
        return [p for p in self.in_order(list(tried)) if self.can_be_halved(p, pieces)]

    def can_be_halved(self, piece: Piece, pieces: list[Piece]) -> bool:
        unit = self.free[piece.unit]
        limits = self.task.constraints.of(unit.tables[0])
        of_table = sum(self.free[p.unit].tables == unit.tables for p in pieces)
        return (
            len(unit.blocks) == 1
            and piece.dim % 2 == 0
            and piece.dim // 2 % 4 == 0
            and limits.allows("column_wise")
            and (limits.max_shards is None or of_table < limits.max_shards)
        )

    def split(self, pieces: list[Piece], piece: Piece) -> list[Piece]:
        rest = list(pieces)
        rest.remove(piece)
        return [*rest, Piece(piece.unit, piece.dim // 2), Piece(piece.unit, piece.dim // 2)]

    # The inner search

    def inner(self, pieces: list[Piece]) -> tuple[list[int] | None, float]:
        """The best placement of the grid, and its score."""
        best, best_cost = None, float("inf")
        for step in range(self.grid):
            bound = 1 + (self.widest_bound - 1) * step / (self.grid - 1)
            placement = self.greedy(pieces, bound * self.mean_dim + 1e-6)
            if placement is not None and (cost := self.score(pieces, placement)) < best_cost:
                best, best_cost = placement, cost
        if best is None:
            best = self.greedy(pieces, float("inf"))
            best_cost = float("inf") if best is None else self.score(pieces, best)
        return best, best_cost

    def greedy(self, pieces: list[Piece], most_dims: float) -> list[int] | None:
        placement: list[int] = []
        held: list[tuple[Piece, ...]] = [()] * len(self.devices)
        for piece in pieces:
            open_devices = [d for d in self.devices if self.has_room(held[d], piece, d, most_dims)]
            if not open_devices:
                return None
            device = min(open_devices, key=lambda d: self.device_cost(held[d], d))
            placement.append(device)
            held[device] += (piece,)
        return placement

    def has_room(self, held: tuple[Piece, ...], piece: Piece, device: int, most_dims: float) -> bool:
        unit = self.free[piece.unit]
        return bool(
            self.dims(held, device) + piece.dim <= most_dims
            and self.used(held, device) + self.bytes(piece) <= self.task.topology.memory_bytes[device]
            and unit.allowed[device]
            and not (self.apart and self.kept_apart(unit.tables, held, device))
        )

    def kept_apart(self, tables: tuple[str, ...], held: tuple[Piece, ...], device: int) -> bool:
        others = {name for p in held for name in self.free[p.unit].tables}
        others |= {shard.table for shard in self.fixed if device in shard.devices}
        return any(frozenset((one, other)) in self.apart for one in tables for other in others)

    def on_device(self, pieces: list[Piece], placement: list[int], device: int) -> tuple[Piece, ...]:
        return tuple(p for p, d in zip(pieces, placement, strict=True) if d == device)

    def used(self, held: tuple[Piece, ...], device: int) -> int:
        return self.fixed_bytes[device] + sum(self.bytes(p) for p in held)

    def dims(self, held: tuple[Piece, ...], device: int) -> int:
        return sum(p.dim for p in held) + sum(s.dim for s in self.fixed if device in s.devices)

    # Predictions

    def blocks(self, piece: Piece) -> list[Shard]:
        unit = self.free[piece.unit]
        if len(unit.blocks) > 1:
            return list(unit.blocks)
        left = unit.blocks[0].columns[0]
        return [replace(unit.blocks[0], columns=(left, left + piece.dim))]

    def size(self, piece: Piece) -> int:
        return self.cached(
            "size", piece, lambda: sum(shard_work(self.task, b).weight_bytes for b in self.blocks(piece))
        )

    def bytes(self, piece: Piece) -> int:
        return self.cached("bytes", piece, lambda: sum(shard_bytes(self.task, b) for b in self.blocks(piece)))

    def encoded(self, works: list[ShardWork]) -> list[tuple[Call, np.ndarray]]:
        """The fused call and the encoding of each."""
        return list(zip(map(call_of, works), self.cost_model.encode(works), strict=True))

    def codes(self, piece: Piece) -> list[tuple[Call, np.ndarray]]:
        return self.cached(
            "codes", piece, lambda: self.encoded([shard_work(self.task, block) for block in self.blocks(piece)])
        )

    def priced(self, codes: list[tuple[Call, np.ndarray]]) -> np.ndarray:
        """Forward and backward ms of a device: the sum of its calls."""
        sums: dict[Call, np.ndarray] = {}
        for call, code in codes:
            sums[call] = sums.get(call, 0) + code
        return sum((self.cost_model.pricing.price(code) for code in sums.values()), np.zeros(2))

    def cached(self, what: str, key: object, predict):
        if (what, key) not in self.predictions:
            self.predictions[what, key] = predict()
        return self.predictions[what, key]

    def single_cost(self, piece: Piece) -> int:
        return self.cached("single", piece, lambda: nanoseconds(self.priced(self.codes(piece)).sum()))

    def device_times(self, held: tuple[Piece, ...], device: int) -> np.ndarray:
        """Forward and backward ms of a device."""
        codes = [code for code, s in zip(self.fixed_codes, self.fixed, strict=True) if device in s.devices]
        return self.priced(codes + [code for piece in held for code in self.codes(piece)])

    def device_cost(self, held: tuple[Piece, ...], device: int) -> int:
        return self.cached("fused", (held, device), lambda: nanoseconds(self.device_times(held, device).sum()))

    def score(self, pieces: list[Piece], placement: list[int]) -> float:
        key = (tuple(pieces), tuple(placement))
        return self.cached("score", key, lambda: self.uncached_score(pieces, placement))

    def uncached_score(self, pieces: list[Piece], placement: list[int]) -> int:
        held = [self.on_device(pieces, placement, d) for d in self.devices]
        times = np.array([self.device_times(held[d], d) for d in self.devices])
        networks = getattr(self.cost_model, "communication", None)
        if self.score_by == "step" or networks is None or len(self.devices) == 1:
            forward, backward = communication_ms(self.task, self.shards(pieces, placement))
            phases = np.stack([times[:, 0], forward, backward, times[:, 1]])
            return nanoseconds(phases.max(axis=1).sum() if self.score_by == "step" else phases.sum(axis=0).max())
        dims = np.array([float(self.dims(held[d], d)) for d in self.devices])
        compute, backward = times.sum(axis=1), networks.backward_ms(dims, self.task.batch_size)
        delays = compute + backward - (compute + backward).min()
        return nanoseconds((compute + networks.forward_ms(dims, delays, self.task.batch_size) + backward).max())

    # Shards

    def shards(self, pieces: list[Piece], placement: list[int]) -> list[Shard]:
        """Pieces of a unit take its columns by rank, and on one rank the widest first."""
        result, begin = list(self.fixed), Counter()
        for piece, device in sorted(zip(pieces, placement, strict=True), key=lambda e: (e[0].unit, e[1], -e[0].dim)):
            for block in self.blocks(piece):
                start, stop = (column + begin[piece.unit] for column in block.columns)
                result.append(replace(block, columns=(start, stop), devices=(device,)))
            begin[piece.unit] += piece.dim
        return result

    def joined(self, pieces: list[Piece], placement: list[int], cost: float) -> list[Shard]:
        """The placement with the pieces of a unit on one device joined, if that does not raise the score."""
        for unit, device in sorted({(p.unit, d) for p, d in zip(pieces, placement, strict=True)}):
            here = [p for p, d in zip(pieces, placement, strict=True) if (p.unit, d) == (unit, device)]
            rest = [(p, d) for p, d in zip(pieces, placement, strict=True) if (p.unit, d) != (unit, device)]
            join = Piece(unit, sum(p.dim for p in here))
            if len(here) == 1:
                continue
            fewer, where = [p for p, _ in rest] + [join], [d for _, d in rest] + [device]
            if self.score(fewer, where) <= cost:
                pieces, placement, cost = fewer, where, self.score(fewer, where)
        return self.shards(pieces, placement)
