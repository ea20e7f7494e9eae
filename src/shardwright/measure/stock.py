"""The random sets of a collection on one kind of hardware: the measured ones, the order of the others, and a summary.

New sets come first. A disturbed set is visited again after a minute, since bursts of other programs last minutes. On a GPU, whose noise
does not come from other programs, it is visited again when no new set is left. Every 20th set is visited twice even if it was quiet, since
two visits show the noise of measuring.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Self, TypeVar

import numpy as np

from shardwright.arrays import Floats
from shardwright.errors import InvalidInput, MeasurementFailed, counted
from shardwright.hardware import Fingerprint, check_device, device_memory
from shardwright.measure.device_work import Job, Visit
from shardwright.measure.sampling import BREADTHS, Breadth, SampleSpace, pool_digest
from shardwright.measure.store import SampleStore
from shardwright.measure.visits import settled, time_of
from shardwright.task.table import Table
from shardwright.task.task import OPTIMIZERS

ARENA_BYTES = 4_000_000_000
_LARGEST_GPU_ARENA, _GPU_SHARE = 60 * 10**9, 0.45  # the rest is for ids, outputs, gradients and the sort in backward
_SPACES = {"cpu": "usual", "cuda": "wide"}

_GPU_SECONDS = 1400.0


@dataclass(frozen=True)
class Collection:
    """A collection of kernel samples; sample i depends only on the options and i.

    Attributes:
        samples: number of samples that the store is to hold in the end.
        seed: seed of the sets of tables.
        space: "usual" or "wide" (see `shardwright.measure.sampling.BREADTHS`); by default "wide" on a GPU, else "usual".
        batch_sizes: each sample draws one of these; by default the space's sizes.
        device: "cpu" or "cuda".
        optimizer: optimizer inside backward; by default each sample draws one of the space's optimizers.
        pool: tables to draw from; by default the "dlrm-2021" pool.
        sequence_share: share of sets with tables that are not pooled; by default the space's share.
        arena_bytes: room for the weights and optimizer state of a set; by default 4 GB, on a GPU 45% of its memory up to 60 GB.

    Raises:
        InvalidInput: an option is out of range.
    """

    samples: int
    seed: int = 0
    space: str | None = None
    batch_sizes: Sequence[int] | None = None
    device: str = "cpu"
    optimizer: str | None = None
    pool: Sequence[Table] | None = None
    sequence_share: float | None = None
    arena_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InvalidInput(f"samples is {self.samples}, must be at least 1")
        if self.seed < 0:
            raise InvalidInput(f"seed is {self.seed}, must not be negative")
        check_device(self.device)
        for name, known in (("optimizer", OPTIMIZERS), ("space", BREADTHS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise InvalidInput(f"{name} is {value!r}, must be one of {', '.join(known)}")

    def arena(self, memory: Callable[[], int] = device_memory) -> int:
        """Room for the tables of a sample, in bytes. All GPUs of one kind get the same default.

        Args:
            memory: returns the bytes of memory of the GPU; called only if needed.
        """
        if self.arena_bytes:
            return self.arena_bytes
        if self.device == "cpu":
            return ARENA_BYTES
        return min(_LARGEST_GPU_ARENA, int(_GPU_SHARE * memory()) // 10**9 * 10**9)

    def sets(self, arena_bytes: int) -> SampleSpace:
        """The space of samples, all of which fit an arena of this size.

        Raises:
            InvalidInput: an option is out of range.
        """
        pool = self.pool
        if pool is None:
            from shardwright.workload.generators import table_pool

            pool = table_pool("dlrm-2021")
        return SampleSpace(tuple(pool), self.seed, arena_bytes - arena_bytes // 100, self._breadth(arena_bytes))

    def _breadth(self, arena_bytes: int) -> Breadth:
        """The named breadth with the given options; on smaller devices, the lookups of a sample are bounded too."""
        named = BREADTHS[self.space or _SPACES[self.device]]
        bounded = min(named.lookup_bytes, arena_bytes / 3)
        return replace(
            named,
            batch_sizes=named.batch_sizes if self.batch_sizes is None else tuple(self.batch_sizes),
            optimizers=named.optimizers if self.optimizer is None else (self.optimizer,),
            sequence_share=named.sequence_share if self.sequence_share is None else self.sequence_share,
            lookup_bytes=named.lookup_bytes if math.isinf(named.lookup_bytes) else bounded,
        )


def seconds_or_default(seconds: float | None, device: str) -> float | None:
    """The time limit of a command in seconds: the given one or the device's default; None for no limit.

    On cuda there is a default limit, since a GPU is paid for by time.

    Raises:
        InvalidInput: the time is not above 0.
    """
    if seconds is not None and not seconds > 0:
        raise InvalidInput(f"--seconds is {seconds}, must be greater than 0; inf is no limit")
    return _GPU_SECONDS if seconds is None and device == "cuda" else seconds


def request_digest(space: SampleSpace, arena_bytes: int) -> str:
    """A digest of everything that defines the sets by number; different collections have different digests."""
    asked = {
        "seed": space.seed,
        "optimizer": space.breadth.optimizers[0],
        "arena_bytes": arena_bytes,
        "pool": pool_digest(space.pool),
        **asdict(space.breadth),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]


REPEAT_EVERY = 20
"""Every 20th set is visited a second time to show the noise of measuring."""

AGAIN_AFTER_S = 60.0

KIND = "random"

T = TypeVar("T")


class Stock:
    """The sets of a collection on one hardware, in a store that is open for writing; a context manager.

    Args:
        folder: the store.
        hardware: fingerprint of the measuring machine.
        collection: the collection.
        arena_bytes: room for the tables of a set.
        ahead: whether a thread draws sets before they are needed; it must not share caches with the measured kernels.

    Attributes:
        store: the store.
        visits: the visits to each set, by number.
        failures: why sets could not be measured, by number; on a GPU these sets are not tried again.
        measured: number of visits that were tried.
        spent: seconds by step.
    """

    def __init__(
        self, folder: Path, hardware: Fingerprint, collection: Collection, arena_bytes: int, *, ahead: bool
    ) -> None:
        self.folder, self.wanted = folder, collection.samples
        self._space = collection.sets(arena_bytes)
        self._prefix = f"{request_digest(self._space, arena_bytes)}:"
        self.store = SampleStore(folder, hardware)
        self.on_gpu = collection.device == "cuda"
        self.visits = defaultdict(list, self._numbered(self.store.labelled(KIND, self._prefix)))
        self.failures = self._numbered(self.store.failures())
        self.measured = 0
        self.spent: defaultdict[str, float] = defaultdict(float)
        todo = [number for number in range(self.wanted) if not self._settled(number)]
        self._new = deque(number for number in todo if number not in self.visits)
        self._again = deque((0.0, number) for number in todo if number in self.visits)
        self._pool = ThreadPoolExecutor(1) if ahead else None
        self._coming: dict[int, Future[Job]] = {}

    @property
    def left(self) -> int:
        """Number of sets that are still to be visited."""
        return len(self._new) + len(self._again)

    @property
    def unseen(self) -> int:
        """Number of sets that were never visited."""
        return len(self._new)

    def queue(self, stop_at: float, ahead: int) -> Iterator[Job]:
        """The sets that are still to be visited, drawn one by one, until `time.monotonic()` reaches `stop_at`.

        Args:
            stop_at: the time.
            ahead: number of new sets that the thread, if there is one, draws ahead.
        """
        while self.left and monotonic() < stop_at:
            began = monotonic()
            waited = not self.on_gpu and self._again and self._again[0][0] <= began
            number = self._again.popleft()[1] if waited or not self._new else self._new.popleft()
            if self._pool:
                for coming in islice(self._new, ahead):
                    if coming not in self._coming:
                        self._coming[coming] = self._pool.submit(self._space.draw, coming)
            drawn = self._coming.pop(number).result() if number in self._coming else self._space.draw(number)
            self.spent["waiting for a draw"] += monotonic() - began
            yield replace(drawn, label=f"{self._prefix}{number}")

    def saw(self, job: Job, result: Visit | str) -> None:
        """Note the visit to a set, or why it cannot be measured; the set returns to the queue if it needs another visit.

        Raises:
            MeasurementFailed: the set cannot be measured on a CPU.
        """
        number = int(job.label.removeprefix(self._prefix))
        self.measured += 1
        if isinstance(result, Visit):
            self.visits[number].append(result)
            if not self._settled(number):
                self._again.append((monotonic() + AGAIN_AFTER_S, number))
        elif self.on_gpu:
            self.store.fail(job, result)
            self.failures[number] = result
        else:
            raise MeasurementFailed(f"sample {number}: {result}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
        self.store.close()

    def _settled(self, number: int) -> bool:
        if self.on_gpu and number in self.failures:
            return True
        return settled(self.visits.get(number, ()), quiet=1 + (number % REPEAT_EVERY == 0))

    def _numbered(self, labelled: Mapping[str, T]) -> dict[int, T]:
        """The entries that belong to sets of this collection, by number."""
        numbers = {label: label.removeprefix(self._prefix) for label in labelled if label.startswith(self._prefix)}
        return {int(number): labelled[label] for label, number in numbers.items() if number.isdecimal()}


@dataclass(frozen=True)
class StoreSummary:
    """The content of a store after collecting kernels or collectives.

    Attributes:
        folder: the store.
        samples: measured samples in the store, without repeats.
        measured: measurements made by this call.
        seconds: duration of this call.
        repeat_median: median relative difference between two measurements of a sample, both passes added; NaN without such pairs.
        repeat_mean: mean of these differences.
    """

    folder: Path
    samples: int
    measured: int
    seconds: float
    repeat_median: float
    repeat_mean: float


@dataclass(frozen=True)
class CollectSummary(StoreSummary):
    """The content of a store after collecting kernels: samples of this collection, and visits to them.

    Attributes:
        disturbed: share of the samples without a quiet visit.
        wanted: samples that were asked for; 0 if unknown.
        failed: samples that were given up, by this and earlier calls.
        spent: seconds of this call by step.
        failure: why the first failed sample was given up.
    """

    disturbed: float
    wanted: int = 0
    failed: int = 0
    spent: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


def summarise(stock: Stock, seconds: float) -> CollectSummary:
    """The summary of a collection's sets on one hardware, after a call that took `seconds`."""
    visits = [each for each in stock.visits.values() if each]
    repeat_median, repeat_mean = noise_of([pair for each in visits if (pair := _repeat(each))])
    disturbed = [not any(visit.quiet for visit in each) for each in visits]
    return CollectSummary(
        folder=stock.folder,
        samples=len(visits),
        measured=stock.measured,
        seconds=seconds,
        disturbed=float(np.mean(disturbed)) if disturbed else math.nan,
        repeat_median=repeat_median,
        repeat_mean=repeat_mean,
        wanted=stock.wanted,
        failed=len(stock.failures),
        spent=dict(stock.spent),
        failure=next(iter(stock.failures.values()), ""),
    )


def _repeat(visits: Sequence[Visit]) -> tuple[float, float] | None:
    """The forward + backward time at the first and last quiet visit; None with fewer than two."""
    quiet = [visit for visit in visits if visit.quiet]
    ends = [sum(time_of([visit], quiet[0].usual_ms)) for visit in (*quiet[:1], *quiet[1:][-1:])]
    return (ends[0], ends[1]) if len(ends) > 1 else None


def noise_of(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Median and mean of |a - b| / mean(a, b) over pairs of measurements of the same work; NaN without pairs."""
    if not pairs:
        return math.nan, math.nan
    noise = differences(*np.array(pairs).T)
    return float(np.median(noise)), float(noise.mean())


def differences(first: Floats, second: Floats) -> Floats:
    """`(n,)` |a - b| / mean(a, b) of n pairs of measurements of the same work: the noise of measuring."""
    noise: Floats = np.abs(first - second) / ((first + second) / 2)
    return noise


def summary_text(summary: CollectSummary) -> str:
    """A summary for users: the work of a call and the content of the store."""
    rate = summary.measured / summary.seconds
    samples, measured = counted(summary.samples, "sample"), counted(summary.measured, "measurement")
    lines = [
        f"{samples} in {summary.folder}; {measured} in {summary.seconds:.0f} s ({rate:.1f} a second)",
        f"visits to a sample differ by {_percent(summary.repeat_mean)} (mean), {_percent(summary.repeat_median)} (median); "
        f"{_percent(summary.disturbed)} of the samples were never measured while the machine was quiet",
    ]
    if summary.failed:
        lines.append(
            f"skipped, since they cannot be measured: {counted(summary.failed, 'sample')}, the first: {summary.failure}"
        )
    if summary.samples < summary.wanted:
        lines.append(f"missing: {counted(summary.wanted - summary.samples, 'sample')}; the same command again goes on")
    return "\n".join(lines + spent_lines(summary))


def spent_lines(summary: CollectSummary) -> list[str]:
    """One line for each step of a call with the time it took, the longest first."""
    if not summary.measured:
        return []
    steps = dict(summary.spent) | {"all else": summary.seconds - sum(summary.spent.values())}
    return [
        f"  {name:20} {took:8.1f} s  {took / summary.seconds:6.1%}  {1e3 * took / summary.measured:8.2f} ms a measurement"
        for name, took in sorted(steps.items(), key=lambda step: -step[1])
    ]


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.1%}"
