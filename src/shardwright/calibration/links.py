"""Measure the links of a cluster, on the ranks of torchrun or between local processes, and cache them for planning."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, astuple
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from shardwright.calibration.visits import calibration_lock, writing_to
from shardwright.cost.choice import cache_folder
from shardwright.cost.files import device_type
from shardwright.errors import InvalidInput
from shardwright.files import write_atomically
from shardwright.hardware import fingerprint
from shardwright.measure.collectives.group import (
    RANK_PROGRAM,
    GroupOptions,
    RankGroup,
    led_group,
    place_of_this_process,
    telling_what_is_kept,
)
from shardwright.measure.collectives.links import Ask, Rung, measure_ladders
from shardwright.measure.collectives.rank import Member, RunPolicy, answer, group_backend
from shardwright.measure.visits import Progress
from shardwright.modelling.links import links_path, measured_links
from shardwright.task.link_files import Cluster, MeasuredLinks
from shardwright.task.links import TORCHREC_CALLS, Collective

SECONDS = 180.0
_NOTES = 3  # format of the notes of an interrupted calibration
TIMEOUT_S = 120.0  # of one rung
_PROBED = 3  # factor on the time of the probe: with less time, only the links are measured


class Probe(Protocol):
    """Measures further times on the ranks that measure the links; for the times of modules, see `integrations.torchrec.steps.modules`."""

    @property
    def seconds(self) -> float:
        """About how long it takes."""

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives whose rungs its ranks measure."""

    @property
    def program(self) -> tuple[str, ...]:
        """Arguments of Python that run a rank of this machine."""

    def answer(self, member: Member, request: dict[str, Any], policy: RunPolicy) -> dict[str, Any]:
        """Serve a request on a rank; return the reply of rank 0."""

    def with_modules(self, ask: Ask, links: MeasuredLinks) -> MeasuredLinks:
        """The links with the times of the probe added."""


def calibrate_links(
    *,
    devices: int | None = None,
    device: str = "cpu",
    seconds: float = SECONDS,
    output: str | Path | None = None,
    progress: Progress | None = None,
    group: GroupOptions | None = None,
    probe: Probe | None = None,
) -> tuple[MeasuredLinks, Path] | None:
    """Measure collectives of all sizes, fit the links, and save them; call it again to go on after any interruption.

    Args:
        devices: processes to start on this machine; by default one for each core, at least 2, or for each GPU. torchrun gives its own.
        device: "cpu" for gloo, or "cuda" for NCCL with a GPU for each process.
        seconds: how long it may take, the start of the processes included.
        output: also save them here.
        progress: called after every size.
        group: options of the processes, by default those that the other arguments give.
        probe: measures further times on these ranks, if the time limit is at least three times its duration; None for links alone.

    Returns:
        The links and their file in the cache folder; None on ranks that torchrun numbered above 0.

    Raises:
        InvalidInput: there is one device only, hosts have different numbers of ranks, an option is out of range, or the cache folder
            cannot be written to.
        MeasurementFailed: a rank ended, or the ranks do not fit together; finished measurements are kept.
    """
    began = monotonic()
    if not 0 < seconds < float("inf"):
        raise InvalidInput(f"time is {seconds:g} s, must be a finite number above 0")
    place = place_of_this_process()
    if place is not None and devices not in (None, place.world):
        raise InvalidInput(f"devices is {devices}, torchrun started {place.world} ranks; leave it out under torchrun")
    machine = fingerprint(device, group_backend(device))
    near = place.local_world if place else _usual_devices(device) if devices is None else devices
    cluster = Cluster(device_type(machine), place.hosts if place else 1, near, machine["backend"], machine["torch"])
    if cluster.devices < 2:
        raise InvalidInput(
            f"{cluster.devices} device has no links to others: start at least two ranks, with --devices or torchrun --nproc-per-node"
        )
    if probe is not None and seconds < _PROBED * probe.seconds:
        probe = None
    if place is None:
        program = probe.program if probe else RANK_PROGRAM
        options = group or GroupOptions(near, device, timeout_s=TIMEOUT_S, program=program)
        with calibration_lock(cache_folder()), telling_what_is_kept(), RankGroup(options) as ranks:
            return _measured(ranks.ask, cluster, began + seconds - monotonic(), output, progress, probe)
    asked = {"seconds": seconds, "probe": probe is not None}
    with led_group(device, place, TIMEOUT_S, asked, RunPolicy(), probe.answer if probe else answer) as led:
        if led is None:
            return None
        with calibration_lock(cache_folder()):
            return _measured(led.ask, cluster, began + seconds - monotonic(), output, progress, probe)


def _usual_devices(device: str) -> int:
    if device == "cpu":
        return max(2, len(os.sched_getaffinity(0)))
    import torch

    return int(torch.cuda.device_count())


def _measured(
    ask: Ask,
    cluster: Cluster,
    seconds: float,
    output: str | Path | None,
    progress: Progress | None,
    probe: Probe | None,
) -> tuple[MeasuredLinks, Path]:
    path = links_path(cluster.device, cluster.hosts, cluster.devices_per_host)
    notes = path.with_suffix(".partial")
    with writing_to(path.parent):
        times = _earlier(notes, cluster)
    if probe is not None:
        seconds -= probe.seconds
    collectives = probe.collectives if probe else TORCHREC_CALLS
    for rung, ms in measure_ladders(ask, cluster, seconds, dict(times), progress, collectives):
        times[rung] = ms
        rows = [[*astuple(rung), taken] for rung, taken in times.items()]
        write_atomically(notes, json.dumps({"format": _NOTES, "cluster": asdict(cluster), "rungs": rows}))
    links = measured_links(cluster, times)
    if probe is not None:
        links = probe.with_modules(ask, links)
    for target in (path, output):
        if target is not None:
            links.save(target)
    notes.unlink(missing_ok=True)
    return links, path


def _earlier(notes: Path, cluster: Cluster) -> dict[Rung, float]:
    """Ms by rung that an interrupted calibration of the same cluster noted."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        noted = json.loads(notes.read_text())
        if noted["format"] == _NOTES and noted["cluster"] == asdict(cluster):
            return {Rung(*rung): float(ms) for *rung, ms in noted["rungs"]}
    return {}
