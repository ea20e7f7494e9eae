"""Fit latency and bandwidth to measured collectives, and find the links of a cluster that were measured earlier.

A collective takes max over {inside the host, between hosts} of latency + bytes / bandwidth; a link class counts only if bytes travel over
it. Inside hosts it is fitted to collectives of the devices of one host. Between hosts it is fitted to collectives of all devices, as far as
they take longer than the bytes inside the hosts explain. All figures are non-negative. The loss is the relative error, and errors above 10%
count less, so that a few disturbed runs do not dominate.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from shardwright.arrays import Bools, Floats
from shardwright.cost.choice import cache_folder
from shardwright.errors import InvalidInput
from shardwright.measure.collectives.links import Rung
from shardwright.measure.stock import differences
from shardwright.modelling.dataset import rates_of
from shardwright.task.link_files import Cluster, LinkErrors, MeasuredLinks, load_links
from shardwright.task.links import COLLECTIVES, LINK_CLASSES, Links, LinkSpeed
from shardwright.task.topology import Topology

Speeds: TypeAlias = tuple[LinkSpeed | None, LinkSpeed | None]
"""Inside a host and between hosts; None if no bytes travelled there."""

_MB = 1e6
_LEAST_MS_PER_MB = 1e-6  # 1e15 bytes per second: faster than any link, and keeps the bandwidth finite
_SOFT = 0.1  # relative error above which a time counts less
_ROUNDS = 8  # rounds of reweighting, and of choosing the class that decides
_CLEARLY = 0.05  # least gain of bandwidth that is no noise, if sizes held out are predicted as well
_FEWEST = 3  # least number of times for a line


def fit_speeds(sent: Floats, ms: Floats) -> Speeds:
    """Fit both link classes.

    Args:
        sent: `(n, 2)` bytes that a device sends inside its host and to other hosts.
        ms: `(n,)` times.
    """
    alone, crossing = (sent[:, 1] == 0) & (sent[:, 0] > 0), sent[:, 1] > 0
    intra = _line(sent[alone, 0], ms[alone]) if alone.any() else None
    if not crossing.any():
        return intra, None
    inside = predicted_ms((intra, None), sent)
    chosen = _enough(crossing & (ms > inside), crossing)
    for _ in range(_ROUNDS):
        inter = _line(sent[chosen, 1], ms[chosen])
        decides = _enough(crossing & (predicted_ms((None, inter), sent) >= inside), crossing)
        if (decides == chosen).all():
            break
        chosen = decides
    return intra, inter


def predicted_ms(speeds: Speeds, sent: Floats) -> Floats:
    """`(n,)` ms of collectives that send `(n, 2)` bytes; link classes without speeds take no time."""
    times = np.zeros_like(sent)
    for column, speed in enumerate(speeds):
        if speed is not None:
            times[:, column] = np.where(
                sent[:, column] > 0, speed.latency_ms + sent[:, column] / speed.bandwidth * 1e3, 0
            )
    result: Floats = times.max(axis=1)
    return result


def _enough(wanted: Bools, otherwise: Bools) -> Bools:
    return wanted if wanted.sum() >= _FEWEST else otherwise


def _line(sent: Floats, ms: Floats) -> LinkSpeed:
    """Latency and bandwidth of a line through times, by relative error; the better of a line through all and one through the longer half.

    Small buffers may pass at once, as through a rate limit, and would distort a line through all times.
    """
    columns = np.stack([np.ones_like(sent), sent / _MB], axis=1)
    starts = [np.ones_like(ms), (ms >= np.median(ms)).astype(np.float64)]
    lines = [_robust(columns, ms, weight) for weight in starts]
    latency, slope = min(lines, key=lambda rates: float(np.log1p((_missed(columns @ rates, ms) / _SOFT) ** 2).sum()))
    return LinkSpeed(float(f"{latency:.5g}"), float(f"{1e3 * _MB / max(slope, _LEAST_MS_PER_MB):.5g}"))


def _robust(columns: Floats, ms: Floats, weight: Floats) -> Floats:
    rates = rates_of(columns, ms, weight)
    for _ in range(_ROUNDS):
        times = columns @ rates
        rates = rates_of(columns, ms, ms / np.maximum(times, ms) * (1 + (_missed(times, ms) / _SOFT) ** 2) ** -0.25)
    return rates


def _missed(predicted: Floats, ms: Floats) -> Floats:
    """Errors as shares of the larger of measured and predicted time, so that too long and too short predictions count alike."""
    errors: Floats = (predicted - ms) / np.maximum(predicted, ms)
    return errors


def measured_links(cluster: Cluster, times: Mapping[Rung, float]) -> MeasuredLinks:
    """The links of a cluster, from ms by rung.

    The error of a fit is that of held-out sizes: each in turn is predicted from all others.
    """
    speeds: dict[str, Any] = {}  # of `Speeds`
    errors: dict[str, dict[str, LinkErrors]] = {}
    for collective in COLLECTIVES:
        rungs = [rung for rung in times if rung.collective == collective and rung.calls == 1 and not rung.alone]
        sent, ms = np.array([rung.sent(cluster) for rung in rungs]), np.array([times[rung] for rung in rungs])
        size = np.array([rung.size for rung in rungs])
        if len(set(size.tolist())) < _FEWEST:
            continue
        missed = np.zeros(len(ms))
        for left_out in np.unique(size):
            held = size == left_out
            missed[held] = np.abs(predicted_ms(fit_speeds(sent[~held], ms[~held]), sent[held]) / ms[held] - 1)
        errors[collective] = {}
        for name, within in zip(LINK_CLASSES, (True, False), strict=True):
            here = np.array([(rung.sent(cluster)[1] == 0) == within for rung in rungs])
            if here.any():
                of_class = {rung: times[rung] for rung, there in zip(rungs, here, strict=True) if there}
                errors[collective][name] = LinkErrors(float(missed[here].mean()), _noise(of_class))
        found = _with_following(fit_speeds(sent, ms), collective, cluster, times)
        speeds[collective] = _with_alone(found, collective, cluster, times, errors[collective])
    return MeasuredLinks(cluster, Links(**speeds), errors, datetime.now(UTC).isoformat(timespec="seconds"))


def _with_following(
    speeds: Speeds, collective: str, cluster: Cluster, times: Mapping[Rung, float]
) -> tuple[LinkSpeed | None, LinkSpeed | None]:
    """The speeds, with the latency of collectives that follow another one at once, as far as chains of them were measured."""
    of_classes = list(speeds)
    for place, within in enumerate((True, False)):
        speed, each = of_classes[place], []
        if speed is None:
            continue
        for rung in times:
            alone = replace(rung, calls=1)
            if (rung.collective, rung.within) == (collective, within) and rung.calls > 1 and alone in times:
                later = (times[rung] - times[alone]) / (rung.calls - 1)
                each.append(later - 1e3 * rung.sent(cluster)[place] / speed.bandwidth)
        if each:
            least = min(max(fmean(each), 0.0), speed.latency_ms)
            of_classes[place] = replace(speed, following_ms=float(f"{least:.5g}"))
    return of_classes[0], of_classes[1]


def _with_alone(
    speeds: Speeds, collective: str, cluster: Cluster, times: Mapping[Rung, float], errors: Mapping[str, LinkErrors]
) -> Speeds:
    """The speeds, with the bandwidth of a sender alone where it was measured, and is larger by more than the errors of the speeds."""
    every = [rung for rung in times if rung.collective == collective and rung.alone]
    sizes = {within: {rung.size for rung in every if rung.within == within} for within in (True, False)}
    rungs = [rung for rung in every if len(sizes[rung.within]) >= _FEWEST]
    if not rungs:
        return speeds
    found = fit_speeds(np.array([rung.sent(cluster) for rung in rungs]), np.array([times[rung] for rung in rungs]))
    shared = cluster.devices_per_host if cluster.devices_per_host > 1 else cluster.hosts
    most = cluster.devices_per_host, shared  # what one sender could gain if all others shared its link
    of_classes = list(speeds)
    for place, (speed, alone, name) in enumerate(zip(speeds, found, LINK_CLASSES, strict=True)):
        if speed is not None and alone is not None and name in errors:
            bandwidth = min(alone.bandwidth, most[place] * speed.bandwidth)
            if bandwidth > (1 + max(_CLEARLY, errors[name].held_out)) * speed.bandwidth:
                of_classes[place] = replace(speed, alone=bandwidth)
    return of_classes[0], of_classes[1]


def _noise(times: Mapping[Rung, float]) -> float | None:
    """Mean relative difference between the two passes over all sizes."""
    by_round = [
        {(rung.within, rung.size): ms for rung, ms in times.items() if rung.round == number} for number in (0, 1)
    ]
    both = by_round[0].keys() & by_round[1].keys()
    if not both:
        return None
    first, second = (np.array([of_round[key] for key in sorted(both)]) for of_round in by_round)
    return float(differences(first, second).mean())


def links_path(device: str, hosts: int, devices_per_host: int) -> Path:
    """The file for the links of a cluster in the user's cache folder."""
    return cache_folder() / "links" / f"{re.sub(r'[^a-z0-9_-]', '', device.lower())}-{hosts}x{devices_per_host}.json"


def cached_links(topology: Topology) -> MeasuredLinks | None:
    """The links in the cache folder that were measured on a cluster like this one; None if there are none, or the file is damaged."""
    path = links_path(topology.device, topology.hosts, topology.devices_per_host)
    try:
        if not path.is_file():
            return None
        links = load_links(path)
    except OSError:
        return None
    except InvalidInput as error:
        with suppress(OSError):
            path.replace(path.with_name(path.name + ".damaged"))
        warnings.warn(f"{error}; moved aside, planning goes on without it", stacklevel=2)
        return None
    return links if links.cluster.is_of(topology) else None
