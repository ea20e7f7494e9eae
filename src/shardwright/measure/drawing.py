"""Sets of tables with all that the store and the measuring process need of them, drawn while the one before is measured."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

from shardwright.measure.sampling import SampleSpace, TableSet
from shardwright.measure.wire import Json, describe_work


@dataclass(frozen=True)
class DrawnSet:
    """A sample, drawn.

    Attributes:
        tables: the set.
        shards: what the store keeps of its shards.
    """

    tables: TableSet
    shards: list[Json]


class Drawer:
    """Draws samples; a context manager. Ahead of time on a thread, where what is measured is not disturbed by it.

    Args:
        space: the samples.
        ahead: whether `expect` draws at once. On a CPU it would: what is measured shares caches and memory with it.
    """

    def __init__(self, space: SampleSpace, *, ahead: bool) -> None:
        self._space = space
        self._pool = ThreadPoolExecutor(1) if ahead else None
        self._coming: dict[int, Future[DrawnSet]] = {}

    def expect(self, samples: Iterable[int]) -> None:
        """Begin to draw samples that will be asked for."""
        for sample in samples if self._pool else ():
            if sample not in self._coming and self._pool:
                self._coming[sample] = self._pool.submit(self._draw, sample)

    def get(self, sample: int) -> DrawnSet:
        """A sample."""
        coming = self._coming.pop(sample, None)
        return coming.result() if coming else self._draw(sample)

    def __enter__(self) -> Drawer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def _draw(self, sample: int) -> DrawnSet:
        drawn = self._space.draw(sample)
        return DrawnSet(drawn, [describe_work(work) for work in drawn.works])
