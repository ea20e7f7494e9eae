"""The cluster: hosts, devices, memory and links, and how devices exchange rows and gradients of sequence tables."""

from __future__ import annotations

import os
import re
import reprlib
import warnings
from collections.abc import Sequence, Set
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias, get_args

from shardwright.errors import InvalidInput
from shardwright.task.links import Collective, Links, LinkSpeed, links_from_dict
from shardwright.task.quantities import (
    checked_name,
    checked_number,
    checked_whole,
    did_you_mean,
    format_bytes,
    known_name,
    listed,
    parse_bandwidth,
    parse_bytes,
)

MAX_DEVICES = 65_536
EMBEDDING_SHARE = 0.85
"""Part of a card's memory that presets give to embeddings; the rest is for dense layers, activations and the allocator."""
ASSUMED = "10 GB/s are assumed"
"""The end of the warning about an unknown bandwidth."""

Memory: TypeAlias = int | str | Sequence[int | str]


@dataclass(frozen=True)
class Topology:
    """Devices ranked host by host: rank = host × devices_per_host + local rank.

    Attributes:
        hosts: number of hosts.
        devices_per_host: devices of each host.
        device: name of the device type; selects the bundled cost model, and the links if none are given.
        memory: bytes for embeddings on each device, `(devices,)`; given as one size for all devices, or one per device.
        intra_bandwidth: bytes per second a device can send inside its host.
        inter_bandwidth: bytes per second a device can send to other hosts.
        intra_latency_ms: fixed cost of a collective inside a host.
        inter_latency_ms: fixed cost of a collective between hosts. Bandwidths and latencies that are not given are those of the first
            preset with such devices, or 10 GB/s, 0.02 and 0.05 ms if there is none; after construction all are numbers.
        links: speeds of single collectives, as measured; None if the latencies and bandwidths above hold for all of them. Given as `Links`
            or as a mapping of collectives.
    """

    hosts: int = 1
    devices_per_host: int = 1
    device: str = "cpu"
    memory: Memory = "4 GB"
    intra_bandwidth: float | str = None  # type: ignore[assignment]  # None only until __post_init__, here and below
    inter_bandwidth: float | str = None  # type: ignore[assignment]
    intra_latency_ms: float = None  # type: ignore[assignment]
    inter_latency_ms: float = None  # type: ignore[assignment]
    links: Links | None = None

    def __post_init__(self) -> None:
        for field in ("hosts", "devices_per_host"):
            object.__setattr__(self, field, checked_whole(getattr(self, field), f"topology: {field}"))
        if self.devices > MAX_DEVICES:
            raise InvalidInput(
                f"topology: hosts {reprlib.repr(self.hosts)} × devices_per_host {reprlib.repr(self.devices_per_host)} "
                f"must be at most {MAX_DEVICES} devices"
            )
        if not isinstance(self.device, str) or not self.device or not self.device.isprintable():
            raise InvalidInput(f"topology: device is {self.device!r}, must be the name of a device type")
        if self.device != self.device.lower():
            known = {"cpu", *(preset.device for preset in PRESETS.values())}
            object.__setattr__(self, "device", known_name(self.device, known) or self.device)
        object.__setattr__(self, "memory", self._memory_per_device())
        self._take_usual_links()
        for field in ("intra_bandwidth", "inter_bandwidth"):
            object.__setattr__(self, field, parse_bandwidth(getattr(self, field), f"topology: {field}"))
        for field in ("intra_latency_ms", "inter_latency_ms"):
            object.__setattr__(self, field, checked_number(getattr(self, field), f"topology: {field}", zero=True))
        if self.links is not None and not isinstance(self.links, Links):
            object.__setattr__(self, "links", links_from_dict(self.links))

    def __repr__(self) -> str:
        low, high = (format_bytes(size) for size in (min(self.memory_bytes), max(self.memory_bytes)))
        memory = low if low == high else f"{low} to {high}"
        intra, inter = (format_bytes(speed) for speed in self.link_bandwidth)
        between = f", {inter}/s between hosts" if self.hosts > 1 else ""
        devices = f"{self.hosts} × {self.devices_per_host} {self.device}"
        return f"<Topology: {devices}, {memory} each, {intra}/s inside a host{between}>"

    def _take_usual_links(self) -> None:
        """Set the bandwidths and latencies that are not given; warn if a bandwidth that plans depend on is unknown."""
        missing = [name for name in _LINK_FIELDS if getattr(self, name) is None]
        if not missing:
            return
        usual = usual_links(self.device)
        for name in missing:
            object.__setattr__(self, name, (usual or _UNKNOWN_LINKS)[name])
        several = {"intra_bandwidth": self.devices_per_host > 1, "inter_bandwidth": self.hosts > 1}
        assumed = [name for name in missing if several.get(name)]
        if assumed and usual is None and self.links is None and self.device != "cpu":
            warnings.warn(
                f"topology: no preset has {self.device!r} devices, so {ASSUMED}; state {' and '.join(assumed)}, or links",
                stacklevel=4,
            )

    def _memory_per_device(self) -> tuple[int, ...]:
        given = None if isinstance(self.memory, Set) else listed(self.memory)  # a set has no order of ranks
        if given is None:
            return (parse_bytes(self.memory, "topology: memory"),) * self.devices
        sizes = tuple(parse_bytes(size, f"topology: memory[{rank}]") for rank, size in enumerate(given))
        if len(sizes) != self.devices:
            raise InvalidInput(
                f"topology: memory lists {len(sizes)} sizes for {self.devices} devices; give one size for all or one per device"
            )
        return sizes

    @property
    def devices(self) -> int:
        """Number of devices of all hosts together."""
        return self.hosts * self.devices_per_host

    @property
    def compute_device(self) -> str:
        """TorchRec's kind of the devices: "cpu" or "cuda"."""
        return "cpu" if self.device == "cpu" else "cuda"

    @property
    def memory_bytes(self) -> tuple[int, ...]:
        """`(devices,)` bytes for embeddings on each device."""
        assert isinstance(self.memory, tuple)
        return self.memory

    @property
    def link_bandwidth(self) -> tuple[float, float]:
        """Bytes per second inside a host and between hosts."""
        return float(self.intra_bandwidth), float(self.inter_bandwidth)

    @property
    def link_latency_ms(self) -> tuple[float, float]:
        """Fixed ms of a collective inside a host and between hosts."""
        return self.intra_latency_ms, self.inter_latency_ms

    def _speeds(self, collective: Collective) -> tuple[LinkSpeed | None, LinkSpeed | None]:
        if self.links is None:
            return None, None
        measured = self.links.of(collective)
        # Both are direct sends: one stands for the other until it is measured.
        return self.links.all_to_all if collective == "exchange" and not any(measured) else measured

    def _known(self, collective: Collective, name: str, otherwise: tuple[float, float]) -> tuple[float, float]:
        """A figure of a collective's speeds inside a host and between hosts, where it is known."""
        known = (getattr(speed, name, None) for speed in self._speeds(collective))
        intra, inter = (usual if figure is None else figure for figure, usual in zip(known, otherwise, strict=True))
        return intra, inter

    def bandwidth_of(self, collective: Collective) -> tuple[float, float]:
        """Bytes per second of a collective inside a host and between hosts."""
        return self._known(collective, "bandwidth", self.link_bandwidth)

    def alone_of(self, collective: Collective) -> tuple[float, float]:
        """As `bandwidth_of`, of a device that sends while no other does."""
        return self._known(collective, "alone", self.bandwidth_of(collective))

    def latency_of(self, collective: Collective) -> tuple[float, float]:
        """Fixed ms of a collective inside a host and between hosts."""
        return self._known(collective, "latency_ms", self.link_latency_ms)

    def following_of(self, collective: Collective) -> tuple[float, float]:
        """As `latency_of`, of a collective that follows another one at once."""
        return self._known(collective, "following_ms", self.latency_of(collective))

    def host_of(self, rank: int) -> int:
        """The host of a device."""
        return rank // self.devices_per_host

    @classmethod
    def preset(cls, name: str, **overrides: object) -> Topology:
        """Return a topology by name, with any attribute replaced: `Topology.preset("h100-8", hosts=4)`.

        A host may have fewer devices than the preset's: `h100-4` has four of those of `h100-8`, with the same links.

        Raises:
            InvalidInput: no preset has this name, or an override names no attribute or breaks a rule.
        """
        known = ("cpu", *PRESETS)
        base_name = known_name(name, known)
        if base_name is None and (part := _part_of_a_host(name)):
            base_name, count = part
            overrides = {"devices_per_host": count, **overrides}
        if base_name is None:
            raise InvalidInput(
                f"topology: unknown preset {name!r}; known presets are {', '.join(known)}{did_you_mean(name, known)}"
            )
        attributes = [field.name for field in fields(cls)]
        for given in overrides:
            if given not in attributes:
                raise InvalidInput(
                    f"topology: unknown attribute {given!r}; known attributes are {', '.join(attributes)}"
                )
        base = _this_machine() if base_name == "cpu" else PRESETS[base_name]
        return replace(base, **{"memory": base.memory_bytes[0], **overrides})  # type: ignore[arg-type]


def _part_of_a_host(name: object) -> tuple[str, int] | None:
    """The smallest preset with as many devices as a name such as "h100-4" states, and their number; None if no preset has."""
    match = re.fullmatch(r"(.+)[-_ ]([1-9][0-9]*)", name.strip()) if isinstance(name, str) else None
    if match is None:
        return None
    count = int(match[2])
    sizes = [preset.devices_per_host for preset in PRESETS.values() if preset.devices_per_host > count]
    whole = (known_name(f"{match[1]}-{size}", PRESETS) for size in sorted(sizes))
    full = next(filter(None, whole), None)
    return None if full is None else (full, count)


def _this_machine() -> Topology:
    """Return this machine's CPU cores as devices, which share half of its memory."""
    cores = len(os.sched_getaffinity(0))
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Topology(devices_per_host=cores, device="cpu", memory=physical // 2 // cores)


_LINK_FIELDS = ("intra_bandwidth", "inter_bandwidth", "intra_latency_ms", "inter_latency_ms")
_UNKNOWN_LINKS: dict[str, float] = dict(zip(_LINK_FIELDS, (10e9, 10e9, 0.02, 0.05), strict=True))


def _preset(count: int, device: str, memory: float, *links: float) -> Topology:
    """One host of `count` devices."""
    intra, inter, intra_ms, inter_ms = links
    return Topology(1, count, device, round(EMBEDDING_SHARE * memory), intra, inter, intra_ms, inter_ms)


# Bandwidths are per device and direction. Published collectives (`benchmarks/published_links.py`) give all latencies, NVLink from A100s on,
# and links between hosts from H100s on: all-to-alls inside hosts of H100s and GB300s (H200s and B200s have the same links) and on 16 GPUs
# of two hosts; all-reduces elsewhere. All other values are the vendors'. Memory is 85% of the card's: the rest is left to the dense layers,
# activations and the allocator (TorchRec's default reservation is 15% too).
#
# Sources of the newer devices, as far as they differ from the above:
# - GB200, GB300: the domain of 72 is a host. GB300s: an all-to-all of 64 (oracle-quickstart in that table) 667 GB/s, between two racks 24;
#   GB200s have the same NVLink, and one 400 Gb NIC each, as H100s. Memory: 13.4 and 20 TB a rack (NVIDIA). Latency: as B200s.
# - MI300X: 48 GB/s reach a peer over the one link of a pair (ROCm/rccl issue 1210), so 7 peers take 336. MI350X: 56 GB/s a pair as measured
#   (meta-pytorch/torchrec PR 4570), so 392; published all-to-alls of MI355Xs reach 361. NICs of 400 Gb and latencies as H100s.
# - L40S, A10G: all traffic crosses the host's PCIe 4.0. All-to-alls of four RTX 4090s, which have such links, reach 18 GB/s through host
#   memory (NVIDIA/nccl issue 1603). G5 hosts have 40 Gb for four A10Gs, 100 Gb for eight (AWS); two L40Ss share 200 Gb (naddod.com).
#   Latencies: as RTX 2080 Tis.
PRESETS: dict[str, Topology] = {
    **{f"rtx2080ti-{count}": _preset(count, "rtx2080ti", 11e9, 12e9, 12e9, 0.03, 0.05) for count in (4, 8)},
    "v100-8": _preset(8, "v100", 32e9, 150e9, 12.5e9, 0.05, 0.035),
    "a100-8": _preset(8, "a100", 80e9, 208e9, 25e9, 0.05, 0.035),
    "h100-8": _preset(8, "h100", 80e9, 335e9, 48e9, 0.032, 0.035),
    "h200-8": _preset(8, "h200", 141e9, 335e9, 48e9, 0.036, 0.035),
    "b200-8": _preset(8, "b200", 180e9, 625e9, 48e9, 0.053, 0.035),
    "gb200-nvl72": _preset(72, "gb200", 186e9, 667e9, 48e9, 0.053, 0.035),
    "gb300-nvl72": _preset(72, "gb300", 277e9, 667e9, 24e9, 0.053, 0.035),
    "mi300x-8": _preset(8, "mi300", 192e9, 336e9, 48e9, 0.032, 0.035),
    "mi350x-8": _preset(8, "mi350x", 288e9, 392e9, 48e9, 0.032, 0.035),
    "l40s-8": _preset(8, "l40s", 48e9, 18e9, 12.5e9, 0.03, 0.05),
    "a10g-4": _preset(4, "a10g", 24e9, 18e9, 1.25e9, 0.03, 0.05),
    "a10g-8": _preset(8, "a10g", 24e9, 18e9, 1.56e9, 0.03, 0.05),
}


def usual_links(device: str) -> dict[str, float] | None:
    """Bandwidths and latencies of the first preset with such devices, by field; None if no preset has them."""
    first = next((preset for preset in PRESETS.values() if preset.device == device), None)
    return None if first is None else {name: getattr(first, name) for name in _LINK_FIELDS}


Deduplication: TypeAlias = Literal["none", "device", "host"]
ReplicaGradients: TypeAlias = Literal["whole", "touched", "cheaper"]
WireType: TypeAlias = Literal["fp32", "fp16", "bf16", "int8", "fp8"]
VALUE_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "fp8": 1}
"""Bytes of a value on the wire, by type."""

Pipeline: TypeAlias = Literal["none", "sparse_dist", "prefetch"]
Conversion: TypeAlias = Literal["codec", "kernel"]
Collectives: TypeAlias = Literal["by_type", "shared"]

_WIRE_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_BATCHES: dict[str, int] = {"none": 1, "sparse_dist": 2, "prefetch": 3}
_CHOICES: dict[str, tuple[str, ...]] = {
    "pipeline": get_args(Pipeline),
    "values": get_args(WireType),
    "gradients": get_args(WireType),
    "deduplicate": get_args(Deduplication),
    "replica_gradients": get_args(ReplicaGradients),
    "conversion": get_args(Conversion),
    "collectives": get_args(Collectives),
}


@dataclass(frozen=True)
class DenseTime:
    """Ms of the dense layers that run on every device while data of the embeddings travel; see "Overlap" in docs/concepts/cost.md.

    Attributes:
        values: layers of the forward pass that need no looked-up values, and that the model calls after its lookups.
        ids: layers that need the values, forward and backward: from the arrival of the values to the departure of their gradients. The
            ids of the next batch travel meanwhile if there is a pipeline.
        gradients: layers of the backward pass that run while gradients travel: those of `values`.
    """

    values: float = 0.0
    ids: float = 0.0
    gradients: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            ms = checked_number(getattr(self, field.name), f"exchange: dense_ms: {field.name}", zero=True)
            object.__setattr__(self, field.name, ms)

    @property
    def total_ms(self) -> float:
        """Their sum."""
        return self.values + self.ids + self.gradients

    def scaled(self, factor: float) -> DenseTime:
        """The same layers with another number of samples on each device."""
        return DenseTime(self.values * factor, self.ids * factor, self.gradients * factor)


@dataclass(frozen=True)
class Exchange:
    """The exchange between ranks: types, pipeline, and handling of repeated rows and gradients of sequence tables.

    Attributes:
        deduplicate: "none": every looked-up row travels, as in TorchRec and in FlexShard's description. "device": a device asks
            once for each distinct row of its samples. "host": the devices of a host combine their requests, so that a row
            crosses the link between two hosts once a step.
        replica_gradients: how the replicas of a block agree on its gradient. "whole": they reduce all of it. "touched": they reduce
            only the rows that a sample of the step looked up. "cheaper": whichever of the two takes fewer expected bytes for the block.
        values: type of the looked-up values on the wire, as TorchRec's `qcomm_codecs_registry` or `output_dtype` sets it.
        gradients: type of their gradients on the wire.
        pipeline: the training pipeline, by the batches whose ids a device holds at a time: "none" one, "sparse_dist" two as TorchRec's
            `TrainPipelineSparseDist`, "prefetch" three as its `PrefetchTrainPipelineSparseDist`.
        conversion: the kernels that convert values and gradients to narrower types: "codec" separate ones, which take time, as for
            TorchRec's `qcomm_codecs_registry`; "kernel" the lookup kernels themselves, as for its `output_dtype`.
        collectives: "by_type": each sharding type of a module calls its own collectives, as in TorchRec. "shared": all tables travel in the
            same messages, whatever their sharding type, as in `shardwright.runtime`; TorchRec runs no such task.
        dense_ms: dense layers behind which data travel. A number stands for `DenseTime(ids=number)`: layers that need the values, as
            nearly all of a DLRM do.
    """

    deduplicate: Deduplication = "none"
    replica_gradients: ReplicaGradients = "whole"
    values: WireType = "fp32"
    gradients: WireType = "fp32"
    pipeline: Pipeline = "none"
    conversion: Conversion = "codec"
    collectives: Collectives = "by_type"
    dense_ms: float | DenseTime = DenseTime()

    def __post_init__(self) -> None:
        for field, known in _CHOICES.items():
            name = checked_name(getattr(self, field), f"exchange: {field}", known, _WIRE_TYPES)
            object.__setattr__(self, field, name)
        if not isinstance(self.dense_ms, DenseTime):
            ids = checked_number(self.dense_ms, "exchange: dense_ms", zero=True)
            object.__setattr__(self, "dense_ms", DenseTime(ids=ids))

    def __repr__(self) -> str:
        changed = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"Exchange({', '.join(changed)})"

    @property
    def batches(self) -> int:
        """Number of batches whose ids a device holds at a time."""
        return _BATCHES[self.pipeline]

    @property
    def hidden(self) -> DenseTime:
        """Ms for which values, ids and gradients travel behind dense layers. Ids do so only in a pipeline."""
        assert isinstance(self.dense_ms, DenseTime)
        return self.dense_ms if self.batches > 1 else replace(self.dense_ms, ids=0.0)

    @property
    def collective(self) -> Collective:
        """The collective by which ids, values and gradients of blocks on single devices travel."""
        return "exchange" if self.collectives == "shared" else "all_to_all"

    @property
    def as_torchrec(self) -> bool:
        """Whether rows and gradients travel as in TorchRec: every looked-up row, and whole gradients, in any types."""
        return self.deduplicate == "none" and self.replica_gradients == "whole"
