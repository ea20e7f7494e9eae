"""Measured all-to-alls as training arrays for NeuroShard's communication networks, and the errors of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.errors import InvalidInput
from shardwright.measure.stock import differences
from shardwright.modelling.dataset import repeats

PASSES = ("forward", "backward")
_AGAIN = "collect the samples again: shardwright collect --collectives"


@dataclass(frozen=True)
class Collectives:
    """n measured all-to-alls of D devices.

    Attributes:
        devices: D.
        sample: `(n,)` ids; a sample measured twice occurs twice.
        repeat: `(n,)` 0 for the first measurement of a sample, 1 for the second.
        batch_size: `(n,)` samples per step, over all devices.
        dims: `(n, D)` dim sums of the devices.
        delays: `(n, D)` ms that each device starts after the first.
        forward: `(n, D)` ms from a device's own start to its own end, so the wait for devices that start late is included.
        backward: `(n, D)` ms of the backward pass, which all devices start together.
    """

    devices: int
    sample: Ints
    repeat: Ints
    batch_size: Ints
    dims: Floats
    delays: Floats
    forward: Floats
    backward: Floats

    def __len__(self) -> int:
        return len(self.sample)

    @property
    def label(self) -> str:
        """Name of the arrangement, as in "4 devices"."""
        return f"{self.devices} devices"

    def select(self, chosen: Bools | Ints) -> Collectives:
        """The collectives where `chosen`, `(n,)`, is true, or those with these numbers."""
        columns = {name: value[chosen] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return Collectives(self.devices, **columns)

    def repeated(self) -> tuple[Collectives, Collectives]:
        """The first and the second measurements of the samples measured twice, in the same order of rows."""
        first, second = repeats(self.sample, self.repeat)
        return self.select(first), self.select(second)


def collectives_of(tables: Sequence[Any]) -> list[Collectives]:
    """The collectives of several stores, grouped by number of devices.

    Args:
        tables: `pyarrow.Table`s as `shardwright.measure` reads them, one per store; ids are shifted so that no two stores share one.

    Returns:
        One `Collectives` for each number of devices, fewest devices first.

    Raises:
        InvalidInput: a row is inconsistent, or a time is not finite and greater than 0.
    """
    groups: dict[int, list[Collectives]] = {}
    shift = 0
    for table in tables:
        world, sample = (np.asarray(table[name], dtype=np.int64) for name in ("world", "sample"))
        for devices in sorted(set(world.tolist())):
            rows = np.flatnonzero(world == devices)
            groups.setdefault(devices, []).append(_arrays(table.take(rows), devices, shift))
        shift += int(sample.max(initial=-1)) + 1
    return [_join(parts) for _, parts in sorted(groups.items())]


def _join(parts: Sequence[Collectives]) -> Collectives:
    columns = [field.name for field in fields(Collectives)[1:]]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in columns}
    return Collectives(parts[0].devices, **joined)


def _arrays(table: Any, devices: int, shift: int) -> Collectives:
    """The collectives of rows that all have the same number of devices."""
    result = Collectives(
        devices=devices,
        sample=np.asarray(table["sample"], dtype=np.int64) + shift,
        repeat=np.asarray(table["repeat"], dtype=np.int64),
        batch_size=np.asarray(table["batch_size"], dtype=np.int64),
        dims=_lists(table, "dims", devices),
        delays=_lists(table, "delays_ms", devices),
        forward=_lists(table, "forward_ms", devices),
        backward=_lists(table, "backward_ms", devices),
    )
    _check(result)
    return result


def _check(collectives: Collectives) -> None:
    for name, values in (("forward_ms", collectives.forward), ("backward_ms", collectives.backward)):
        if not np.isfinite(values).all() or (values <= 0).any():
            raise InvalidInput(f"collectives: {name} holds a time that is not finite and greater than 0; {_AGAIN}")
    for name, values in (("dims", collectives.dims), ("delays_ms", collectives.delays)):
        if not np.isfinite(values).all() or (values < 0).any():
            raise InvalidInput(f"collectives: {name} must be finite and at least 0; {_AGAIN}")


def _lists(table: Any, name: str, devices: int) -> Floats:
    """`(n, devices)` numbers of a list column."""
    rows = table[name].to_pylist()
    for sample, row in zip(table["sample"], rows, strict=True):
        if row is None or len(row) != devices:
            raise InvalidInput(
                f"collectives: {name} of sample {sample} has {0 if row is None else len(row)} numbers for {devices} devices; {_AGAIN}"
            )
    return np.array(rows, dtype=np.float64).reshape(len(rows), devices)


@dataclass(frozen=True)
class PassErrors:
    """Errors of the predicted times of single devices in held-out collectives.

    Attributes:
        devices: number of times compared.
        mean_error: mean absolute relative error.
        median_error: median absolute relative error.
        repeat_error: mean relative difference of a time measured twice; None without repeats.
    """

    devices: int
    mean_error: float
    median_error: float
    repeat_error: float | None


def errors_of(predicted: Floats, measured: Floats, repeat_error: float | None) -> PassErrors:
    """Errors of `(k,)` predicted against `(k,)` measured times."""
    error = np.abs(predicted - measured) / measured
    return PassErrors(len(error), float(error.mean()), float(np.median(error)), repeat_error)


def repeat_error(part: Collectives, name: str) -> float | None:
    """Mean relative difference between the two measurements of a device's time in a pass, one of `PASSES`; None without repeats."""
    noise = differences(*(getattr(half, name).ravel() for half in part.repeated()))
    return float(noise.mean()) if len(noise) else None
