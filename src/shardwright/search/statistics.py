"""Statistics of a search: where its time went, and which changes it tried and took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic


@dataclass(frozen=True)
class SearchStatistics:
    """Statistics of the searches of `certified` that began while these statistics were collected.

    Attributes:
        seconds: by part of the search: "ways and bound", "starts", "other strategies", "kicks", "simplify", "proof".
        tried: how often each kind of change was priced: "moves" of a piece to another device, "swaps", "cuts", other "ways" of an item, and
            "kicks". A move counts once for each pair of devices, a way once and again for every eight devices.
        taken: how many of them gained, and were made.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    tried: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)


_COLLECTED: ContextVar[SearchStatistics | None] = ContextVar("statistics", default=None)


@contextmanager
def search_statistics() -> Iterator[SearchStatistics]:
    """Collect the statistics of searches.

    Example:
        >>> import shardwright as sw
        >>> tables = [sw.Table(f"t{number}", 100_000, 64, 4.0 + number) for number in range(8)]
        >>> with sw.search.search_statistics() as statistics:
        ...     plan = sw.plan(sw.Task(tables, sw.Topology.preset("h100-8"), 65_536))
        >>> statistics.taken["moves"] <= statistics.tried["moves"]
        True
    """
    collected = SearchStatistics()
    token = _COLLECTED.set(collected)
    try:
        yield collected
    finally:
        _COLLECTED.reset(token)


@contextmanager
def timed(part: str) -> Iterator[None]:
    """Add the time of a part of a search. Searches inside count as this part alone."""
    collected, started = _COLLECTED.get(), monotonic()
    token = _COLLECTED.set(None)
    try:
        yield
    finally:
        _COLLECTED.reset(token)
        if collected is not None:
            collected.seconds[part] += monotonic() - started


def count_changes(changes: Mapping[str, tuple[int, int]]) -> None:
    """Add changes: by kind, how often it was tried and taken."""
    if (collected := _COLLECTED.get()) is not None:
        for kind, (tried, taken) in changes.items():
            collected.tried[kind] += tried
            collected.taken[kind] += taken
