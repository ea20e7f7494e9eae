"""Known latencies and bandwidths of single collectives, and the time of TorchRec's modules besides them."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from shardwright.errors import InvalidInput
from shardwright.task.quantities import LEAST_BARE, check_unit, checked_number, parse_bandwidth

Collective: TypeAlias = Literal["all_to_all", "reduce_scatter", "all_gather", "all_reduce", "exchange"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
"""Those that TorchRec calls, and the exchange of `shardwright.runtime`, an all-to-all of direct sends."""
TORCHREC_CALLS = tuple(collective for collective in COLLECTIVES if collective != "exchange")
DIRECT: tuple[Collective, ...] = ("all_to_all", "exchange")
"""Collectives of direct sends, which a step calls several times in a row."""
LINK_CLASSES = ("intra", "inter")
"""Links inside a host and links between hosts."""


def backend_of(device: str) -> str:
    """The backend of torch.distributed by which devices of a type train."""
    return "gloo" if device == "cpu" else "nccl"


@dataclass(frozen=True)
class LinkSpeed:
    """Latency and bandwidth of a collective over one link class.

    Attributes:
        latency_ms: fixed cost of the collective.
        bandwidth: bytes per second that a device sends; see `cost.collectives` for the bytes that count.
        following_ms: fixed cost of a collective that follows another one at once; `latency_ms` if it is unknown.
        alone: bytes per second that a device sends while no other does; `bandwidth` if it is unknown.
    """

    latency_ms: float
    bandwidth: float
    following_ms: float | None = None
    alone: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "latency_ms", checked_number(self.latency_ms, "links: latency_ms", zero=True))
        object.__setattr__(self, "bandwidth", parse_bandwidth(self.bandwidth, "links: bandwidth"))
        if self.following_ms is not None:
            following = checked_number(self.following_ms, "links: following_ms", zero=True)
            object.__setattr__(self, "following_ms", following)
        if self.alone is not None:
            alone = parse_bandwidth(self.alone, "links: alone")
            object.__setattr__(self, "alone", alone)
            if alone < self.bandwidth:
                raise InvalidInput(_too_slow("links", alone, self.bandwidth))


@dataclass(frozen=True)
class ModuleTimes:
    """The time of modules in a step, on every device, besides collectives and lookup kernels: Python, sorting, copying.

    Attributes:
        pooled_ms: ms of an `EmbeddingBagCollection`.
        sequence_ms: ms of an `EmbeddingCollection`.
        shared_ms: ms of `shardwright.runtime.ShardedEmbeddings`, for all tables together.
    """

    pooled_ms: float = 0.0
    sequence_ms: float = 0.0
    shared_ms: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            object.__setattr__(self, name, checked_number(value, f"links: modules: {name}", zero=True))


_NO_MODULES = ModuleTimes()


@dataclass(frozen=True)
class Links:
    """Speeds by collective, each inside a host and between hosts; None if one was not measured.

    A topology's own latencies and bandwidths apply to collectives that are missing here. `modules` are the times of TorchRec's modules.
    """

    all_to_all: tuple[LinkSpeed | None, LinkSpeed | None] = (None, None)
    reduce_scatter: tuple[LinkSpeed | None, LinkSpeed | None] = (None, None)
    all_gather: tuple[LinkSpeed | None, LinkSpeed | None] = (None, None)
    all_reduce: tuple[LinkSpeed | None, LinkSpeed | None] = (None, None)
    exchange: tuple[LinkSpeed | None, LinkSpeed | None] = (None, None)
    modules: ModuleTimes = _NO_MODULES

    def of(self, collective: Collective) -> tuple[LinkSpeed | None, LinkSpeed | None]:
        """Speeds of a collective inside a host and between hosts."""
        speeds: tuple[LinkSpeed | None, LinkSpeed | None] = getattr(self, collective)
        return speeds

    def scaled(self, latency: float, bandwidth: tuple[float, float]) -> Links:
        """The links with all latencies, and the bandwidths inside a host and between hosts, times factors."""

        def other(speed: LinkSpeed | None, factor: float) -> LinkSpeed | None:
            if speed is None:
                return None
            following = None if speed.following_ms is None else latency * speed.following_ms
            alone = None if speed.alone is None else factor * speed.alone
            return LinkSpeed(latency * speed.latency_ms, factor * speed.bandwidth, following, alone)

        intra, inter = bandwidth
        pairs = ((name, self.of(name)) for name in COLLECTIVES)
        return Links(
            modules=self.modules, **{name: (other(near, intra), other(far, inter)) for name, (near, far) in pairs}
        )


def links_from_dict(content: object, what: str = "topology: links") -> Links:
    """The links in plain data: {all_to_all: {intra: {latency_ms: 0.03, bandwidth: 335 GB/s}, inter: …}, …, modules: {pooled_ms: 1}}.

    Raises:
        InvalidInput: a collective or a field is unknown, or a number breaks its rule.
    """
    given = dict(_mapping(content, what, (*COLLECTIVES, "modules")))
    modules = _mapping(given.pop("modules", {}), f"{what}.modules", tuple(field.name for field in fields(ModuleTimes)))
    speeds = {}
    for collective, classes in given.items():
        at = f"{what}.{collective}"
        of_class = _mapping(classes, at, LINK_CLASSES)
        speeds[collective] = tuple(_speed(of_class.get(name), f"{at}.{name}") for name in LINK_CLASSES)
        if collective not in DIRECT and any(speed and speed.alone for speed in speeds[collective]):
            raise InvalidInput(
                f"{at}: has alone, which only {' and '.join(DIRECT)} may have: in others all devices send; leave it out"
            )
    return Links(**speeds, modules=ModuleTimes(**modules))  # type: ignore[arg-type]  # pairs and numbers


def links_to_dict(links: Links) -> dict[str, dict[str, Any]]:
    """The measured links as plain data."""
    of_collective: dict[str, dict[str, Any]] = {
        collective: {
            name: {key: _stated(key, value) for key, value in asdict(speed).items() if value is not None}
            for name, speed in zip(LINK_CLASSES, links.of(collective), strict=True)
            if speed is not None
        }
        for collective in COLLECTIVES
    }
    of_collective["modules"] = {name: ms for name, ms in asdict(links.modules).items() if ms}
    return {name: values for name, values in of_collective.items() if values}


def _stated(field: str, value: float) -> float | str:
    """A field of a speed, with a unit if a reader would doubt the bare number."""
    return f"{value!r} B/s" if field in ("bandwidth", "alone") and value < LEAST_BARE else value


def _speed(content: object, what: str) -> LinkSpeed | None:
    if content is None:
        return None
    given = _mapping(content, what, tuple(field.name for field in fields(LinkSpeed)))
    if not {"latency_ms", "bandwidth"} <= set(given):
        raise InvalidInput(f"{what} is {reprlib.repr(content)}, must give latency_ms and bandwidth")
    for field in ("bandwidth", "alone"):
        check_unit(given.get(field), f"{what}.{field}", per_second=True)
    latency = checked_number(given["latency_ms"], f"{what}.latency_ms", zero=True)
    following = given.get("following_ms")
    if following is not None:
        following = checked_number(following, f"{what}.following_ms", zero=True)
    alone = given.get("alone")
    if alone is not None:
        alone = parse_bandwidth(alone, f"{what}.alone")
    bandwidth = parse_bandwidth(given["bandwidth"], f"{what}.bandwidth")
    if alone is not None and alone < bandwidth:
        raise InvalidInput(_too_slow(what, alone, bandwidth))
    return LinkSpeed(latency, bandwidth, following, alone)


def _too_slow(what: str, alone: float, bandwidth: float) -> str:
    return f"{what}: alone is {alone:g} bytes/s, must be at least the bandwidth, {bandwidth:g} bytes/s"


def _mapping(content: object, what: str, known: tuple[str, ...]) -> Mapping[str, object]:
    if not isinstance(content, Mapping):
        raise InvalidInput(f"{what} is {reprlib.repr(content)}, must be a mapping of {', '.join(known)}")
    for name in content:
        if name not in known:
            raise InvalidInput(f"{what}: unknown field {name!r}; known fields are {', '.join(known)}")
    return content
