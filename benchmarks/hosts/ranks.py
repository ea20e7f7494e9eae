"""Start rank processes inside the hosts of a test bed as torchrun would, watch them, and end them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from benchmarks.hosts.network import LINK, address
from shardwright.errors import MeasurementFailed
from shardwright.processes import worker_environment

_LOOK_S = 0.05
_LEAVE_S = 3.0  # time for the other ranks to notice and report that the first one failed
_PORT = 29500  # free in every namespace: nothing else runs there
_LAST_LINES = 4


@dataclass(frozen=True)
class Place:
    """Where a rank runs.

    Attributes:
        rank: number of the rank.
        local_rank: number of the rank on its host.
        host: host of the rank.
        namespace: namespace of the host.
    """

    rank: int
    local_rank: int
    host: int
    namespace: str


def run_ranks(
    command: Sequence[str], places: Sequence[Place], timeout_s: float, environment: Mapping[str, str]
) -> list[str]:
    """Run a command as every rank, and wait for all.

    Args:
        command: program and arguments, the same for all; RANK and the like tell them apart.
        places: where each rank runs.
        timeout_s: most seconds for the whole run.
        environment: variables added to this process's.

    Returns:
        Output of each rank.

    Raises:
        MeasurementFailed: a rank failed, or the time is over; all ranks have been ended.
    """
    with tempfile.TemporaryDirectory(prefix="shardwright-ranks-") as folder:
        outputs = [Path(folder) / f"{place.rank}.out" for place in places]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for place, output in zip(places, outputs, strict=True):
                variables = {**worker_environment(), **_variables(place, places), **environment}
                processes.append(_start(command, place, output, variables))
            _wait(processes, monotonic() + timeout_s)
            _complain(processes, outputs, timeout_s)
            return [output.read_text(errors="replace") for output in outputs]
        finally:
            _end(processes)


def _variables(place: Place, places: Sequence[Place]) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank, and gloo's network interface."""
    local = sum(other.host == place.host for other in places)
    numbers = {
        "RANK": place.rank, "WORLD_SIZE": len(places), "LOCAL_RANK": place.local_rank, "LOCAL_WORLD_SIZE": local,
        "GROUP_RANK": place.host, "MASTER_PORT": _PORT, "OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1,
    }  # fmt: skip
    names = {"MASTER_ADDR": address(places[0].host), "GLOO_SOCKET_IFNAME": LINK, "TP_SOCKET_IFNAME": LINK}
    return {**{name: str(number) for name, number in numbers.items()}, **names}


def _start(
    command: Sequence[str], place: Place, output: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with output.open("wb") as out, _errors(output).open("wb") as errors:
        process = subprocess.Popen(
            ["ip", "netns", "exec", place.namespace, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            env=dict(environment),
            start_new_session=True,  # a rank's own processes end with it
        )
    # Local ranks begin at 0 on every host, so ranks that pin themselves by them would all take one core.
    cores = sorted(os.sched_getaffinity(0))
    with suppress(ProcessLookupError):
        os.sched_setaffinity(process.pid, {cores[place.rank % len(cores)]})
        # Else gloo's threads, on one core, delay each other by up to 4 ms; see `measure.collectives.rank`.
        os.sched_setscheduler(process.pid, os.SCHED_BATCH, os.sched_param(0))
    return process


def _errors(output: Path) -> Path:
    return output.with_suffix(".err")


def _wait(processes: Sequence[subprocess.Popen[bytes]], stop: float) -> None:
    """Wait until all have ended, one has failed (and the others had time to say why), or the time is over."""
    while monotonic() < stop:
        codes = [process.poll() for process in processes]
        if all(code is not None for code in codes):
            return
        if any(codes):
            stop = min(stop, monotonic() + _LEAVE_S)
            while monotonic() < stop and any(process.poll() is None for process in processes):
                sleep(_LOOK_S)
            return
        sleep(_LOOK_S)


def _complain(processes: Sequence[subprocess.Popen[bytes]], outputs: Sequence[Path], timeout_s: float) -> None:
    """Raise an error for the rank that failed. A rank ended by a signal counts first, since it took the others along."""
    codes = {rank: process.poll() for rank, process in enumerate(processes)}
    failed = {rank: code for rank, code in codes.items() if code}
    if failed:
        rank, code = min(failed.items(), key=lambda item: (item[1] > 0, item[0]))
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        lines = _errors(outputs[rank]).read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
        raise MeasurementFailed(f"rank {rank} {how}. Its last lines: {' | '.join(lines) or '(none)'}")
    if waiting := [rank for rank, code in codes.items() if code is None]:
        raise MeasurementFailed(
            f"ranks {', '.join(map(str, waiting))} did not end within {timeout_s:g} s; allow more time, or look for a hang"
        )


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
