"""Fit latency and bandwidth of links to measured collectives, and evaluate the predictions.

The model is that of `shardwright.cost.score` plus the wait for devices that start late (as NeuroShard measures it):

    time of device d = max over devices of start − start of d
                       + max over {inside the host, between hosts} of  latency + max(bytes sent, bytes received) / bandwidth

where a link class counts only for devices that send or receive over it. All fitted figures are non-negative. The loss is the relative
error. Above 10% it grows slowly (`soft_l1` of `scipy.optimize.least_squares`), so that a few disturbed collectives do not dominate the fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.dataset import rates_of, repeats, shared_out
from shardwright.errors import InvalidInput
from shardwright.measure.stock import differences

ALL_TO_ALL = "all_to_all"
KINDS = (ALL_TO_ALL, "reduce_scatter", "all_gather", "all_reduce")
_AGAIN = "collect the samples again: shardwright collect --collectives"


@dataclass(frozen=True)
class Collectives:
    """n measured collectives of D devices on one number of hosts.

    Attributes:
        devices: D.
        hosts: number of hosts that the devices are spread over.
        sample: `(n,)` ids; a sample measured twice occurs twice.
        repeat: `(n,)` 0 for the first measurement of a sample, 1 for the second.
        kind: `(n,)` one of `KINDS`.
        batch_size: `(n,)` samples per step, over all devices.
        dims: `(n, D)` dim sums of the devices; NaN unless the kind is all_to_all.
        busiest: `(n, 2, D)` bytes inside the host and between hosts: the larger of sent and received.
        delays: `(n, D)` ms that each device starts after the first.
        forward: `(n, D)` ms from a device's own start to its own end, so the wait for devices that start late is included.
        backward: `(n, D)` ms of the backward pass, which all devices start together; NaN unless the kind is all_to_all.
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
        """Name of the arrangement, as in "4 devices" or "16 devices on 2 hosts"."""
        return f"{self.devices} devices" + (f" on {self.hosts} hosts" if self.hosts > 1 else "")

    @property
    def wait(self) -> Floats:
        """`(n, D)` ms that each device waits for the last device to start."""
        wait: Floats = self.delays.max(axis=1, keepdims=True) - self.delays
        return wait

    def select(self, chosen: Bools | Ints) -> Collectives:
        """The collectives where `chosen`, `(n,)`, is true, or those with these numbers."""
        columns = {name: value[chosen] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return Collectives(self.devices, self.hosts, **columns)

    def of_kind(self, kind: str) -> Collectives:
        """The collectives of one kind."""
        return self.select(self.kind == kind)

    def repeated(self) -> tuple[Collectives, Collectives]:
        """The first and the second measurements of the samples measured twice, in the same order of rows."""
        first, second = repeats(self.sample, self.repeat)
        return self.select(first), self.select(second)


def split(collectives: Collectives, seed: int) -> tuple[Collectives, Collectives, Collectives]:
    """Split each kind into training, validation and test collectives; both measurements of a sample stay together."""
    sample, rng = collectives.sample, np.random.default_rng(seed)
    shares = [shared_out(np.unique(sample[collectives.kind == kind]), rng) for kind in KINDS]
    parts = (np.concatenate(part) for part in zip(*shares, strict=True))
    train, valid, test = (collectives.select(np.isin(sample, part)) for part in parts)
    return train, valid, test


def collectives_of(tables: Sequence[Any]) -> list[Collectives]:
    """The collectives of several stores, grouped by number of devices and hosts.

    Args:
        tables: `pyarrow.Table`s as `shardwright.measure` reads them, one per store; ids are shifted so that no two stores share one.

    Returns:
        One `Collectives` for each number of devices and hosts, fewest devices first.

    Raises:
        InvalidInput: a row is inconsistent, or a time is not finite and greater than 0.
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
    """The collectives of rows that all have the same number of devices and hosts."""
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
    """`(n, devices)` numbers of a list column; NaN in rows that are not `filled`, whose list may be empty."""
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


FORWARD, BACKWARD = f"{ALL_TO_ALL}_forward", f"{ALL_TO_ALL}_backward"
FITS = (ALL_TO_ALL, FORWARD, BACKWARD, *KINDS[1:])
"""The fits: both passes of the all-to-all together, each pass alone, and each other kind."""

FEWEST = 20
_SOFT = 0.1  # relative error above which a device's time counts less
_MB = 1e6
_LEAST_MS_PER_MB = 1e-6  # 1e15 bytes per second: faster than any link, and keeps the bandwidth finite
_FIGURES = 4


@dataclass(frozen=True)
class LinkFit:
    """Latency and bandwidth of a link class.

    Attributes:
        latency_ms: fixed cost of a collective.
        bandwidth: bytes per second.
    """

    latency_ms: float
    bandwidth: float


@dataclass(frozen=True)
class LinkFits:
    """Fitted link classes of one kind of collective.

    Attributes:
        intra: links inside a host; None if no sample used them.
        inter: links between hosts; None if no sample used them.
    """

    intra: LinkFit | None
    inter: LinkFit | None

    def predict(self, busiest: Floats, wait: Floats) -> Floats:
        """Times of the devices by the module's equation.

        Args:
            busiest: `(n, 2, D)` bytes by link class, the larger of sent and received.
            wait: `(n, D)` ms that each device waits for the last device to start.

        Returns:
            `(n, D)` ms.

        Raises:
            InvalidInput: a collective uses a link class that was never measured.
        """
        figures = np.zeros(_FIGURES)
        for link, (name, fit) in enumerate((("inside a host", self.intra), ("between hosts", self.inter))):
            if fit is not None:
                figures[2 * link : 2 * link + 2] = fit.latency_ms, 1e3 * _MB / fit.bandwidth
            elif (busiest[:, link] > 0).any():
                raise InvalidInput(f"links {name} were not measured; collect collectives that use them")
        return _times(figures, busiest / _MB, wait)


def fit_links(parts: Sequence[Collectives]) -> dict[str, LinkFits]:
    """Fit the link classes for every name in `FITS` with at least `FEWEST` measured passes.

    Args:
        parts: training collectives, of any numbers of devices.

    Returns:
        Fits by the names in `FITS`.
    """
    result = {}
    for name in FITS:
        passes = [measured for part in parts for measured in passes_of(part, name)]
        if sum(len(times) for _, _, times in passes) >= FEWEST:
            result[name] = _fit(passes)
    return result


def passes_of(collectives: Collectives, name: str) -> list[tuple[Floats, Floats, Floats]]:
    """Busiest bytes `(n, 2, D)`, wait `(n, D)` and ms `(n, D)` of each pass that a fit uses."""
    chosen = collectives.of_kind(ALL_TO_ALL if name in (FORWARD, BACKWARD) else name)
    passes = []
    if name != BACKWARD:
        passes.append((chosen.busiest, chosen.wait, chosen.forward))
    if name in (ALL_TO_ALL, BACKWARD):
        passes.append((chosen.busiest, np.zeros_like(chosen.wait), chosen.backward))
    return passes


def predict(fits: Mapping[str, LinkFits], collectives: Collectives, name: str) -> tuple[Floats, Floats]:
    """`(k,)` predicted and `(k,)` measured ms of every device in every pass of a fit."""
    passes = passes_of(collectives, name)
    predicted = [fits[name].predict(busiest, wait).ravel() for busiest, wait, _ in passes]
    return np.concatenate(predicted), np.concatenate([times.ravel() for _, _, times in passes])


def _fit(passes: Sequence[tuple[Floats, Floats, Floats]]) -> LinkFits:
    """Fit latency and bandwidth of both link classes to passes of any numbers of devices."""
    from scipy.optimize import least_squares

    busiest = np.concatenate([b.transpose(0, 2, 1).reshape(-1, 2) for b, _, _ in passes]).T[None] / _MB  # (1, 2, k)
    wait, times = (np.concatenate([part[index].ravel() for part in passes])[None] for index in (1, 2))
    used = [bool((busiest[0, link] > 0).any()) for link in (0, 1)]
    start = np.concatenate([_line(busiest[0, link], (times - wait)[0]) for link in (0, 1)])
    least = np.tile([0.0, _LEAST_MS_PER_MB], 2)

    def residuals(figures: Floats) -> Floats:
        errors: Floats = ((_times(figures, busiest, wait) - times) / times).ravel()
        return errors

    scale = np.maximum(start, [1e-3, 1e-4] * 2)
    found = least_squares(
        residuals, np.maximum(start, least * 2), bounds=(least, np.inf), loss="soft_l1", f_scale=_SOFT, x_scale=scale
    ).x
    links = [LinkFit(float(latency), float(1e3 * _MB / slope)) for latency, slope in found.reshape(2, 2)]
    return LinkFits(links[0] if used[0] else None, links[1] if used[1] else None)


def _line(megabytes: Floats, times: Floats) -> Floats:
    """Start values, latency and ms per MB: a line through the times of devices that use the link class, by relative error."""
    inside = (megabytes > 0) & (times > 0)
    if not inside.any():
        return np.zeros(2)
    return rates_of(np.stack([np.ones(int(inside.sum())), megabytes[inside]], axis=1), times[inside])


def _times(figures: Floats, megabytes: Floats, wait: Floats) -> Floats:
    """`(n, D)` ms from `(4,)` latency and ms per MB of both classes, `(n, 2, D)` MB and `(n, D)` ms of wait."""
    latency, slope = figures[0::2, None], figures[1::2, None]
    times: Floats = wait + np.where(megabytes > 0, latency + megabytes * slope, 0.0).max(axis=1)
    return times


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


def repeat_error(parts: Sequence[Collectives], name: str) -> float | None:
    """Mean relative difference between the two measurements of a device's time; None without repeats.

    Args:
        parts: collectives with their repeats.
        name: the passes, one of `FITS`.
    """
    found = [np.zeros(0)]
    for part in parts:
        first, second = (np.concatenate([p[2].ravel() for p in passes_of(half, name)]) for half in part.repeated())
        found.append(differences(first, second))
    joined = np.concatenate(found)
    return float(joined.mean()) if len(joined) else None


def link_errors(
    fits: Mapping[str, LinkFits], held_out: Sequence[Collectives], everything: Sequence[Collectives]
) -> dict[str, PassErrors]:
    """Errors of each fit on the first measurements in `held_out`.

    Args:
        fits: the result of `fit_links`.
        held_out: collectives that the fits have not seen.
        everything: all collectives of the stores, for the repeat noise.
    """
    result = {}
    for name in fits:
        pairs = [predict(fits, part.select(part.repeat == 0), name) for part in held_out]
        predicted, measured = (np.concatenate(side) for side in zip(*pairs, strict=True))
        if len(measured):
            result[name] = errors_of(predicted, measured, repeat_error(everything, name))
    return result


LINKS = "links"
"""The key of the fits in a model's metadata."""


def links_to_text(fits: Mapping[str, LinkFits]) -> str:
    """Fits as one line of JSON: {"all_to_all": {"intra": {"latency_ms": …, "bandwidth": …}, "inter": null}, …}."""
    return json.dumps({name: asdict(fit) for name, fit in fits.items()}, allow_nan=False)
