"""Measured collectives as arrays to fit on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.errors import InvalidInput

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

ALL_TO_ALL = "all_to_all"
KINDS = (ALL_TO_ALL, "reduce_scatter", "all_gather", "all_reduce")
SHARES = (0.8, 0.1, 0.1)  # training, validation, test, as in NeuroShard
_AGAIN = "collect the samples again: shardwright collect --collectives"


@dataclass(frozen=True)
class Collectives:
    """n measured collectives of D devices on one number of hosts.

    Attributes:
        devices: D.
        hosts: hosts that the devices are spread over.
        sample: `(n,)` ids; a sample measured twice occurs twice.
        repeat: `(n,)` 0 for the first measurement of a sample, 1 for the second.
        kind: `(n,)` one of `KINDS`.
        batch_size: `(n,)` samples a step, over all devices.
        dims: `(n, D)` dim sums of the devices; NaN unless the kind is all_to_all.
        busiest: `(n, 2, D)` bytes inside the host and between hosts: the larger of sent and received.
        delays: `(n, D)` ms that each device starts after the first.
        forward: `(n, D)` ms from a device's own start to its own end, so with the wait for devices that start late.
        backward: `(n, D)` ms of the backward pass, started together; NaN unless the kind is all_to_all.
    """

    devices: int
    hosts: int
    sample: Ints
    repeat: Ints
    kind: npt.NDArray[np.str_]
    batch_size: Ints
    dims: Floats
    busiest: Floats
    delays: Floats
    forward: Floats
    backward: Floats

    def __len__(self) -> int:
        return len(self.sample)

    @property
    def label(self) -> str:
        """As in "4 devices" or "16 devices on 2 hosts"."""
        return f"{self.devices} devices" + (f" on {self.hosts} hosts" if self.hosts > 1 else "")

    @property
    def wait(self) -> Floats:
        """`(n, D)` ms that each device waits for the last to start."""
        wait: Floats = self.delays.max(axis=1, keepdims=True) - self.delays
        return wait

    def select(self, chosen: Bools) -> Collectives:
        """The collectives where `chosen`, `(n,)`, is true."""
        return self._take(np.flatnonzero(chosen))

    def of_kind(self, kind: str) -> Collectives:
        """The collectives of one kind."""
        return self.select(self.kind == kind)

    def repeated(self) -> tuple[Collectives, Collectives]:
        """The first and, row by row, the second measurements of the samples that were measured twice."""
        place = {
            (int(sample), int(r)): row for row, (sample, r) in enumerate(zip(self.sample, self.repeat, strict=True))
        }
        pairs = [(place[sample, 0], row) for (sample, r), row in place.items() if r == 1 and (sample, 0) in place]
        first, second = (self._take([pair[side] for pair in pairs]) for side in (0, 1))
        return first, second

    def _take(self, rows: Sequence[int] | Ints) -> Collectives:
        index = np.asarray(rows, dtype=np.int64)
        columns = {name: value[index] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return Collectives(self.devices, self.hosts, **columns)


def split(collectives: Collectives, seed: int) -> tuple[Collectives, Collectives, Collectives]:
    """Training, validation and test collectives, each kind by these shares; both measurements of a sample stay together."""
    part_of: dict[int, int] = {}
    rng = np.random.default_rng(seed)
    for kind in KINDS:
        ids = rng.permutation(np.unique(collectives.sample[collectives.kind == kind]))
        cuts = np.cumsum([round(share * len(ids)) for share in SHARES[:-1]])
        part_of |= {int(i): part for part, chunk in enumerate(np.split(ids, cuts)) for i in chunk}
    owner = np.array([part_of[int(i)] for i in collectives.sample], dtype=np.int64)
    train, valid, test = (collectives.select(owner == part) for part in range(len(SHARES)))
    return train, valid, test


def collectives_of(tables: Sequence[Any]) -> list[Collectives]:
    """The collectives of several stores, by number of devices and hosts.

    Args:
        tables: `pyarrow.Table`s as `shardwright.measure` reads them, one a store; sample ids of different stores never mean one sample.

    Returns:
        One `Collectives` for each number of devices and hosts, fewest devices first.

    Raises:
        InvalidInput: a row contradicts itself, or a time is not finite and greater than 0.
    """
    groups: dict[tuple[int, int], list[Collectives]] = {}
    shift = 0
    for table in tables:
        world, hosts, sample = (np.asarray(table[name], dtype=np.int64) for name in ("world", "hosts", "sample"))
        for devices, spread in sorted(set(zip(world.tolist(), hosts.tolist(), strict=True))):
            rows = np.flatnonzero((world == devices) & (hosts == spread))
            groups.setdefault((devices, spread), []).append(_arrays(table.take(rows), devices, spread, shift))
        shift += int(sample.max(initial=-1)) + 1
    return [_join(parts) for _, parts in sorted(groups.items())]


def _join(parts: Sequence[Collectives]) -> Collectives:
    columns = [field.name for field in fields(Collectives)[2:]]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in columns}
    return Collectives(parts[0].devices, parts[0].hosts, **joined)


def _arrays(table: Any, devices: int, hosts: int, shift: int) -> Collectives:
    """Arrays of rows that all have the same number of devices and hosts."""
    kind = np.array(table["kind"].to_pylist(), dtype=np.str_)
    if devices < 1 or not 1 <= hosts <= devices or not set(kind.tolist()) <= set(KINDS):
        raise InvalidInput(
            f"collectives of kinds {sorted(set(kind.tolist()))}, {devices} devices on {hosts} hosts: the kinds must be among "
            f"{', '.join(KINDS)}, with 1 ≤ hosts ≤ devices; {_AGAIN}"
        )
    of_passes = kind == ALL_TO_ALL
    sent, received = (
        np.stack([_lists(table, f"{way}_{link}", devices) for link in ("intra", "inter")], axis=1)
        for way in ("sent", "received")
    )
    result = Collectives(
        devices=devices,
        hosts=hosts,
        sample=np.asarray(table["sample"], dtype=np.int64) + shift,
        repeat=np.asarray(table["repeat"], dtype=np.int64),
        kind=kind,
        batch_size=np.asarray(table["batch_size"], dtype=np.int64),
        dims=_lists(table, "dims", devices, of_passes),
        busiest=np.maximum(sent, received),
        delays=_lists(table, "delays_ms", devices),
        forward=_lists(table, "forward_ms", devices),
        backward=_lists(table, "backward_ms", devices, of_passes),
    )
    _check(result, of_passes, np.minimum(sent, received))
    return result


def _check(found: Collectives, of_passes: Bools, fewest: Floats) -> None:
    for name, values in (("forward_ms", found.forward), ("backward_ms", found.backward[of_passes])):
        if not np.isfinite(values).all() or (values <= 0).any():
            raise InvalidInput(f"collectives: {name} holds a time that is not finite and greater than 0; {_AGAIN}")
    for name, values in (
        ("dims", found.dims[of_passes]),
        ("delays_ms", found.delays),
        ("bytes sent and received", fewest),
    ):
        if not np.isfinite(values).all() or (values < 0).any():
            raise InvalidInput(f"collectives: {name} must be finite and at least 0; {_AGAIN}")


def _lists(table: Any, name: str, devices: int, filled: Bools | None = None) -> Floats:
    """`(n, devices)` numbers of a list column; NaN in rows that are not `filled`, where the list may be empty."""
    rows = table[name].to_pylist()
    result = np.full((len(rows), devices), np.nan)
    for index, row in enumerate(rows):
        if filled is not None and not filled[index]:
            continue
        if row is None or len(row) != devices:
            raise InvalidInput(
                f"collectives: {name} of sample {table['sample'][index]} has {0 if row is None else len(row)} numbers for {devices} "
                f"devices; {_AGAIN}"
            )
        result[index] = row
    return result
