"""Clusters from the command line: types of hosts by preset, numbers of hosts, and memory that stays free of embeddings."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.cli.output import note
from shardwright.errors import InvalidInput
from shardwright.task.quantities import check_unit, format_bytes, parse_bytes, parse_count

if TYPE_CHECKING:
    from shardwright.task import Task, Topology


def task_on_cluster(
    file: Path,
    devices: str | None = None,
    hosts: str | None = None,
    reserve: str | None = None,
    batch: str | None = None,
) -> Task:
    """The task of a file, on the cluster of the command line; a topology that states no links gets those measured on such a cluster.

    Args:
        file: the task file.
        devices: preset of the hosts; None for those of the task.
        hosts: number of hosts; None for one with `devices`, and for those of the task without.
        reserve: memory of each device that embeddings leave free, as `with_reserve` takes it.
        batch: samples of a step; None for those of the task.

    Raises:
        InvalidInput: the file or an option breaks a rule.
    """
    from shardwright.cli.calibrate import with_known_links
    from shardwright.task.files import load_task
    from shardwright.task.topology import ASSUMED

    count = None if hosts is None else parse_count(hosts, "--hosts")
    batch_size = None if batch is None else parse_count(batch, "--batch")
    preset = None if devices is None else clusters_of(None, [1 if count is None else count], devices)[0]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        task = load_task(file, topology=preset, batch_size=batch_size)
    topology = task.topology
    if preset is None and count is not None:
        topology = clusters_of(topology, [count], None)[0]
    topology = with_reserve(topology, reserve, of_preset=preset is not None)
    topology, text = with_known_links(topology)
    for warning in warned:
        known = text is not None and ASSUMED in str(warning.message)  # then no value is assumed
        if issubclass(warning.category, UserWarning) and not known:
            warnings.warn(str(warning.message), stacklevel=1)
    if text is not None:
        note(text)
    return task if topology == task.topology else replace(task, topology=topology)


def clusters_of(own: Topology | None, hosts: Sequence[int], devices: str | None) -> list[Topology]:
    """Clusters of each type of hosts in each size.

    Args:
        own: the cluster whose hosts count if `devices` names none.
        hosts: numbers of hosts.
        devices: presets, separated by commas.

    Raises:
        InvalidInput: there is no such preset, or `own` has devices with different memory.
    """
    from shardwright.schema import Place
    from shardwright.task import Topology

    if devices is None:
        if own is None or len(set(own.memory_bytes)) > 1:
            raise InvalidInput(
                "topology: memory differs from device to device, so it does not carry over to other clusters; use --devices"
            )
        bases = [replace(own, memory=own.memory_bytes[0], hosts=1)]
    else:
        with Place("--devices").naming():
            bases = [Topology.preset(name.strip()) for name in devices.split(",")]
    return [replace(base, hosts=count, memory=base.memory_bytes[0]) for base in bases for count in hosts]


def with_reserve(topology: Topology, reserve: str | None, of_preset: bool) -> Topology:
    """The cluster with memory that embeddings leave free on each device.

    Args:
        topology: the cluster.
        reserve: a share such as "20%", or a size such as "16 GB"; None for the cluster as it is.
        of_preset: whether the cluster is a preset's: shares and sizes are then of the whole card, else of the memory that is stated.

    Raises:
        InvalidInput: the reserve is neither, or leaves no memory.
    """
    from shardwright.task import PRESETS
    from shardwright.task.topology import EMBEDDING_SHARE

    cards = of_preset and topology.device in {preset.device for preset in PRESETS.values()}
    if reserve is None:
        if cards:
            note(
                f"memory: {1 - EMBEDDING_SHARE:.0%} of each device are left free of embeddings; --reserve changes that"
            )
        return topology
    whole = [round(size / EMBEDDING_SHARE) if cards else size for size in topology.memory_bytes]
    percent = re.fullmatch(r"\s*([0-9]{1,3}(?:\.[0-9]+)?)\s*%\s*", reserve)
    if percent is None:
        check_unit(reserve, "--reserve")
        kept = [parse_bytes(reserve, "--reserve")] * len(whole)
    else:
        kept = [round(size * float(percent[1]) / 100) for size in whole]
    left = [size - part for size, part in zip(whole, kept, strict=True)]
    if min(left) < 1:
        raise InvalidInput(f"--reserve: {reserve!r} leaves no memory of {min(whole):,} bytes a device; reserve less")
    note(f"memory: {format_bytes(max(kept))} of each device's {format_bytes(max(whole))} are left free of embeddings")
    return replace(topology, memory=left)
