"""One rank of a torch.distributed group: join the group, time all-to-alls with the other ranks, and the program of a process.

A rank's time runs from its own start, after its delay, to its own end. So it includes the wait for later ranks, as in NeuroShard.

The program reads requests from standard input, one JSON document per line, and measures them with the other ranks. Rank 0 answers each on
standard output. A rank ends when its standard input closes. A rank that hangs at that time ends itself some time after its sample's
timeout.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import fmean, median
from time import monotonic_ns, perf_counter, sleep
from typing import IO, TYPE_CHECKING, Any

from shardwright.errors import InvalidInput, MeasurementFailed, ShardwrightError
from shardwright.hardware import check_device, import_torch, require_cuda
from shardwright.measure.collectives.links import FEWEST_RUNS, Rung
from shardwright.measure.collectives.sampling import CollectiveSample, samples_of
from shardwright.processes import reply, take_over_stdout
from shardwright.task.links import Collective, backend_of

if TYPE_CHECKING:
    import torch

_MARGIN_NS = 1_000_000  # from the last rank's arrival to the common start, so that the agreement reaches all ranks
_SPIN_NS = 200_000  # spin at the end of a wait if there are enough cores, since sleep is exact only to about 60 µs
_MOST_RUNS = 25  # counted runs of a rung, whose mean counts without the tenths at both ends
_PAUSE_MS = 5.0
_SPREAD_MS = 0.3  # between the first device and the last one to start
_GRACE_S = 10.0  # after the timeout; by then the parent process should have ended this one


@dataclass(frozen=True)
class RunPolicy:
    """Numbers of runs of a collective; the defaults are NeuroShard's.

    Attributes:
        warm_up: runs that are not counted.
        runs: counted runs; the median of each device is kept.
    """

    warm_up: int = 5
    runs: int = 10

    def __post_init__(self) -> None:
        if self.warm_up < 0 or not 1 <= self.runs < 2**15:
            raise InvalidInput(
                f"runs: warm_up {self.warm_up} must not be negative and runs {self.runs} must be between 1 and {2**15 - 1}"
            )


@dataclass(frozen=True)
class Member:
    """This process as a rank of an existing group.

    Attributes:
        rank: number of this rank.
        world: number of ranks.
        device: device of this rank's buffers.
        local_world: ranks on this machine. If that is all ranks, they agree on a start by the machine's clock; else a barrier starts them.
    """

    rank: int
    world: int
    device: torch.device
    local_world: int
    _host_groups: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)

    def measure(self, sample: CollectiveSample, policy: RunPolicy) -> dict[str, Any]:
        """Measure a sample, with all other ranks; return the median ms of each device, {forward_ms: […], backward_ms: […]}, on every rank.

        Forward times include the wait for devices that start late.
        """
        calls = build_passes(sample, self.rank, self.world, self.device)
        forward, backward = [], []
        for _ in range(policy.warm_up + policy.runs):
            forward.append(self.time(calls[0], sample.delays_ms[self.rank]))
            backward.append(self.time(calls[1]))
        mine = [median(times[policy.warm_up :]) for times in (forward, backward)]
        forward_ms, backward_ms = zip(*self.gather(mine), strict=True)
        return {"forward_ms": forward_ms, "backward_ms": backward_ms}

    def host_group(self, hosts: int) -> Any:
        """The group of the ranks of this rank's host, one of `hosts`; made once, when all ranks first ask for it."""
        import torch.distributed as dist

        if hosts not in self._host_groups:
            near = self.world // hosts
            made = [dist.new_group(list(range(first, first + near))) for first in range(0, self.world, near)]
            self._host_groups[hosts] = made[self.rank // near]
        return self._host_groups[hosts]

    def time(self, call: Callable[[], Any], delay_ms: float = 0.0) -> float:
        """Milliseconds of one call after the common start and this rank's delay."""
        self._wait_until(self._common_start() + round(delay_ms * 1e6))
        if self.device.type == "cpu":
            started = perf_counter()
            call()
            return (perf_counter() - started) * 1e3
        import torch

        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize(self.device)
        return float(begin.elapsed_time(end))

    def _common_start(self) -> int:
        """The common start in ns of this machine's monotonic clock. No rank gets it before all ranks have asked."""
        import torch
        import torch.distributed as dist

        latest = torch.tensor([monotonic_ns()], device=self.device)
        dist.all_reduce(latest, dist.ReduceOp.MAX)
        arrived = int(latest)  # waits for the device
        return arrived + _MARGIN_NS if self.local_world == self.world else monotonic_ns()

    def _wait_until(self, instant: int) -> None:
        """Sleep until an instant, and spin at the end unless that would take a core from another rank."""
        spin = _SPIN_NS if 2 * self.local_world <= (os.cpu_count() or 1) else 0
        left = instant - monotonic_ns() - spin
        if left > 0:
            sleep(left / 1e9)
        while monotonic_ns() < instant:
            pass

    def gather(self, mine: list[float]) -> list[list[float]]:
        """`(devices, n)` numbers of all ranks."""
        import torch
        import torch.distributed as dist

        own = torch.tensor(mine, dtype=torch.float64, device=self.device)
        all_ = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(all_, own)
        return [times.tolist() for times in all_]

    def texts(self, mine: bytes) -> list[bytes]:
        """The texts of all ranks, which may differ in length, on every rank."""
        import torch
        import torch.distributed as dist

        sizes = [int(size) for (size,) in self.gather([len(mine)])]
        own = torch.frombuffer(bytearray(mine.ljust(max(*sizes, 1))), dtype=torch.uint8).to(self.device)
        padded = [torch.empty_like(own) for _ in sizes]
        dist.all_gather(padded, own)
        return [bytes(text[:size].tolist()) for text, size in zip(padded, sizes, strict=True)]


def build_passes(
    sample: CollectiveSample, rank: int, world: int, device: torch.device
) -> list[Callable[[], torch.Tensor]]:
    """Build the forward and the backward all-to-all of a sample on one rank of an existing group; each returns the received values.

    Forward sends this rank's columns of all samples and receives all columns of its own; backward is the reverse. Every input value is the
    number of the sending rank.
    """
    import torch
    import torch.distributed as dist

    counts = samples_of(sample.batch_size, world)
    out_splits = [sample.dims[rank] * count for count in counts]
    in_splits = [dim * counts[rank] for dim in sample.dims]
    values = torch.full((sum(out_splits),), float(rank), device=device)
    pooled = torch.empty(sum(in_splits), device=device)
    gradients = torch.full((sum(in_splits),), float(rank), device=device)
    collected = torch.empty(sum(out_splits), device=device)

    def forward() -> torch.Tensor:
        dist.all_to_all_single(pooled, values, in_splits, out_splits)
        return pooled

    def backward() -> torch.Tensor:
        dist.all_to_all_single(collected, gradients, out_splits, in_splits)
        return collected

    return [forward, backward]


def named(name: str, older: str) -> Callable[..., Any]:
    """A function of torch.distributed by its current name, or by its name before torch 2.13."""
    import torch.distributed as dist

    function: Callable[..., Any] = getattr(dist, name, None) or getattr(dist, older)
    return function


def group_backend(device_kind: str) -> str:
    """The backend of torch.distributed for "cpu" or "cuda".

    Raises:
        InvalidInput: there is no such device.
    """
    check_device(device_kind)
    return backend_of(device_kind)


@dataclass(frozen=True)
class PlaceInGroup:
    """Place of this process in a group.

    Attributes:
        rank: number of this process.
        world: number of ranks on all hosts.
        local_rank: number of this process on this host.
        local_world: number of ranks on this host.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int

    @property
    def hosts(self) -> int:
        """Number of hosts of the group."""
        return self.world // self.local_world


@contextmanager
def joined_group(
    device_kind: str, place: PlaceInGroup, timeout_s: float, meeting_file: Path | None = None
) -> Iterator[Member]:
    """Join a group as a rank for the duration of a block.

    Args:
        device_kind: "cpu" or "cuda"; on cuda, rank i of a machine takes GPU i.
        place: place of this process.
        timeout_s: a collective that takes longer fails.
        meeting_file: new file through which ranks of one machine find each other; None to use MASTER_ADDR and MASTER_PORT.

    Raises:
        MeasurementFailed: the device is missing.
    """
    torch = import_torch()
    import torch.distributed as dist

    if device_kind == "cuda":
        require_cuda()
        if place.local_world > torch.cuda.device_count():
            raise MeasurementFailed(
                f"{place.local_world} ranks on this machine need a GPU each, it has {torch.cuda.device_count()}; use fewer ranks"
            )
        torch.cuda.set_device(place.local_rank)
        device = torch.device("cuda", place.local_rank)
    else:
        torch.set_num_threads(1)
        _settle_on_core(place.local_rank)
        device = torch.device("cpu")
    dist.init_process_group(
        group_backend(device_kind),
        init_method=meeting_file.as_uri() if meeting_file else "env://",
        rank=place.rank,
        world_size=place.world,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        yield Member(place.rank, place.world, device, place.local_world)
    finally:
        dist.destroy_process_group()


def _settle_on_core(local_rank: int) -> None:
    """Keep this process and its future threads on one core, with the highest priority if that is allowed.

    If ranks move between cores, two measurements of the same sample differ by twice as much. gloo's event thread spins while another
    thread of its rank holds a connection's lock. Woken on the same core, it would keep that thread from going on until the next tick, up to
    4 ms later, if it took over at once, which threads in SCHED_BATCH do not.
    """
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    os.sched_setaffinity(0, {cores[local_rank % len(cores)]})
    with suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)


Answer = Callable[[Member, dict[str, Any], RunPolicy], dict[str, Any]]


def main(program: Answer | None = None) -> None:
    """Serve requests until standard input ends. The one argument of the process is a JSON document: see `group.RankGroup`.

    Args:
        program: serves a request on every rank, and returns the reply of rank 0; by default requests are for times of collectives.
    """
    options = json.loads(sys.argv[1])
    replies = take_over_stdout()
    try:
        _serve(options, replies, program or answer)
    except ShardwrightError as error:
        reply(replies, {"error": str(error)})
        sys.exit(1)


def _serve(options: dict[str, Any], replies: IO[str], program: Answer) -> None:
    rank, world, longest = options["rank"], options["world"], options["timeout_s"] + _GRACE_S
    policy = RunPolicy(**options["policy"])
    place = PlaceInGroup(rank, world, rank, world)
    with joined_group(options["device"], place, longest, Path(options["meeting_file"])) as member:
        if rank == 0:
            reply(replies, {"ready": True})
        for line in sys.stdin:
            faulthandler.dump_traceback_later(longest, exit=True)
            said = program(member, json.loads(line), policy)
            faulthandler.cancel_dump_traceback_later()
            if rank == 0:
                reply(replies, said)


def answer(member: Member, request: dict[str, Any], policy: RunPolicy) -> dict[str, Any]:
    """Measure a sample, or a rung of the ladder of links; return the reply of rank 0."""
    if "sample" in request:
        return member.measure(CollectiveSample(**request), policy)
    return measure_rung(member, request, _rung_call)


def measure_rung(
    member: Member, request: dict[str, Any], call_of: Callable[[Rung, Member, int], Callable[[], Any]]
) -> dict[str, Any]:
    """Measure a rung on this rank, with all others at the same time; all return the same.

    Args:
        member: the rank.
        request: the rung, the number of hosts, and the seconds that it may take.
        call_of: makes the collective of a rung.
    """
    rung, hosts = Rung(**request["rung"]), int(request["hosts"])
    call = call_of(rung, member, hosts)
    for run in range(2):  # the first sets up connections
        once = _slowest(member, call, run)
    runs = min(_MOST_RUNS, max(FEWEST_RUNS, int(1e3 * request["seconds"] / max(once + _PAUSE_MS, 1e-3))))
    times = sorted(_slowest(member, call, run) for run in range(runs))
    ms = fmean(times[len(times) // 10 : len(times) - len(times) // 10])
    if not 0 < ms < float("inf"):
        raise MeasurementFailed(f"{rung.collective} took {ms} ms, must be more than 0; check the clock of this machine")
    return {"ms": ms}


def _slowest(member: Member, call: Callable[[], Any], run: int) -> float:
    """Milliseconds of a call from the last start until the last rank is done; each run has another rank start last.

    A pause before it stands for the kernels of a step. Threads that have just served a collective serve the next one at once: on two cores,
    gloo took 0.2 ms then, and 2.5 ms after a pause.
    """
    place = (member.rank + run) % member.world
    delay = _PAUSE_MS + _SPREAD_MS * place / max(1, member.world - 1)
    return max(map(sum, member.gather([delay, member.time(call, delay)]))) - _PAUSE_MS - _SPREAD_MS


def _rung_call(rung: Rung, member: Member, hosts: int) -> Callable[[], Any]:
    """The collective of a rung on this rank, as TorchRec's `comm_ops` calls it."""
    import torch
    import torch.distributed as dist

    group = member.host_group(hosts) if rung.within else dist.group.WORLD
    devices = member.world // hosts if rung.within else member.world
    elements = rung.elements(devices)
    whole, other = (torch.zeros(elements, device=member.device) for _ in range(2))
    part = other[: elements // devices]
    sent, received = rung.splits(dist.get_rank(group), devices)
    values, outputs = whole[: sum(sent)], other[: sum(received)]
    calls: dict[Collective, Callable[[], Any]] = {
        "all_to_all": lambda: dist.all_to_all_single(outputs, values, received, sent, group=group),
        "reduce_scatter": lambda: named("reduce_scatter_single", "reduce_scatter_tensor")(part, whole, group=group),
        "all_gather": lambda: named("all_gather_single", "all_gather_into_tensor")(whole, part, group=group),
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
    }
    called = calls[rung.collective]
    return lambda: [called() for _ in range(rung.calls)]


if __name__ == "__main__":
    main()
