"""Check a machine before collecting samples: matching versions of its software, correct kernels, and the speed of copies.

`python -m shardwright.measure.checks -o FOLDER --device cuda` runs them. Exit code 1 means that a check failed: do not collect samples
then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import MeasurementFailed, ShardwrightError, telling_errors
from shardwright.files import read_text, write_atomically
from shardwright.hardware import default_backend, device_memory, fingerprint, import_torch
from shardwright.measure.backend import free_memory
from shardwright.measure.backends import BACKEND_HELP, check_backend, is_own, load_backend, source_digest
from shardwright.measure.timing import Steady, TimingPolicy, clock_of, time_parts

if TYPE_CHECKING:
    import torch

    from shardwright.measure.kernel_checks import Check

CHECKS = "checks.json"
"""Name of the file with the results, in the folder of the samples."""

MATCHING_TORCH = {"1.8": "2.13", "1.7": "2.12", "1.6": "2.11", "1.5": "2.10", "1.4": "2.9"}
"""For each release of FBGEMM, the release of torch that it is built for (from the table in FBGEMM's own package)."""

SIZES = {
    "cpu": tuple(2**power for power in (22, 24, 26, 28)),
    "cuda": tuple(2**power for power in (24, 26, 28, 30, 32)),
}
"""Bytes copied, by kind of device."""

FAR_ABOVE_CACHE = {"cpu": 2**28, "cuda": 2**30}
"""Bytes from which a copy measures memory alone, by kind of device. Smaller copies are partly or wholly in the last-level cache."""

_BUFFERS = 3  # copied in turn, so that none is still in a cache


def check_machine(
    folder: Path,
    device: str,
    backend: str | None = None,
    *,
    seed: int | None = None,
    say: Callable[[str], None] = print,
) -> list[str]:
    """Check environment and kernels, and measure copies; the results go to `checks.json` in the folder of the samples.

    Does nothing if that file shows that the same machine has passed.

    Args:
        folder: folder of the samples; made if it does not exist.
        device: "cpu" or "cuda".
        backend: "fbgemm", "embedding_bag" or your own as "package.module:ClassName"; by default fbgemm if it is installed.
        seed: seed of the kernels' inputs; by default a new one.
        say: called with each line of the results.

    Returns:
        The problems, each with its remedy; none if samples can be collected.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: torch or the backend is not installed.
        MeasurementFailed: there is no such device.
    """
    path, backend = folder / CHECKS, backend or default_backend()
    facts = environment(device, backend)
    for name, value in facts.items():
        say(f"{name:16} {value}")
    if _passed_before(path, facts):
        say(f"checked before: {path}")
        return []
    results: dict[str, Any] = {"environment": facts, "problems": problems(facts)}
    if not results["problems"]:
        results |= _run(device, backend, time.time_ns() % 2**31 if seed is None else seed, say)
    results["passed"] = not results["problems"]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(results, indent=2) + "\n")
    for problem in results["problems"]:
        say(f"problem: {problem}")
    say("" if results["problems"] else "all checks passed")
    return list(results["problems"])


def require_checked(
    folder: Path, device: str, backend: str | None, *, say: Callable[[str], None] | None = None
) -> None:
    """Check a machine as `check_machine` does; raise if a check fails.

    Args:
        folder: folder of the samples.
        device: "cpu" or "cuda".
        backend: as for `check_machine`.
        say: called with each line of the results; by default they are not shown.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: torch or the backend is not installed.
        MeasurementFailed: a check failed, or there is no such device.
    """
    wrong = check_machine(folder, device, backend, say=say or (lambda line: None))
    if wrong:
        raise MeasurementFailed(f"{wrong[0]} (all of it is in {folder / CHECKS})")


def _passed_before(path: Path, facts: dict[str, str]) -> bool:
    try:
        known = json.loads(read_text(path, "file of checks"))
        return bool(known["passed"]) and known["environment"] == facts
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _run(device: str, backend: str, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Check the kernels and measure copies."""
    from shardwright.measure.kernel_checks import check_kernels

    checks = check_kernels(device, backend, seed=seed)
    for line in _lines(checks):
        say(line)
    times = copy_times(device)
    far = of_memory(times, device)
    for copy in times:
        rate = f"{copy.bytes_per_s / 1e9:7.1f} GB/s read and written"
        say(
            f"copy of {copy.size_bytes / 2**20:7.0f} MiB: {copy.ms:8.3f} ms, {rate}{'' if copy in far else ', in part by a cache'}"
        )
    return {
        "seed": seed,
        "kernels": [_as_data(check) for check in checks],
        "copies": [asdict(copy) | {"bytes_per_s": copy.bytes_per_s, "of_memory": copy in far} for copy in times],
        "ceiling_bytes_per_s": ceiling(times, device),
        "problems": _wrong(checks, backend),
    }


def _wrong(checks: Sequence[Check], backend: str) -> list[str]:
    """The problems that the checks of the kernels found."""
    if all(check.refused for check in checks):
        return [f"backend {backend} refuses every call, the first with: {checks[0].refused}"]
    return [
        f"results differ from the reference: {check.name}{f' ({check.fault})' if check.fault else ''}; do not collect: use another "
        "backend or version of FBGEMM, or report it"
        for check in checks
        if not check.passed
    ]


def _lines(checks: Sequence[Check]) -> Iterator[str]:
    """The results as text: a line for each call that ran, and a line for each reason to refuse calls."""
    for check in checks:
        if not check.refused:
            errors = f"forward {check.forward:.1e}  weights {check.weights:.1e}  state {check.state:.1e}"
            yield f"{'ok   ' if check.passed else 'WRONG'} {check.name:56} {check.fault or errors}"
    for reason, calls in Counter(check.refused for check in checks if check.refused).items():
        yield f"none  {calls} calls are refused: {reason}"


def _as_data(check: Check) -> dict[str, Any]:
    """A check as plain data, with None for NaN."""
    values = asdict(check) | {"passed": check.passed}
    return {name: None if isinstance(value, float) and isnan(value) else value for name, value in values.items()}


def environment(device: str, backend: str) -> dict[str, str]:
    """Facts about this machine: its fingerprint, and for a GPU also driver, CUDA version, capability and memory.

    A user's own backend adds the digest of its source file, since a changed backend must be checked again.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: torch is not installed.
        MeasurementFailed: there is no such device.
    """
    check_backend(backend)
    facts = dict(fingerprint(device, backend))
    if is_own(backend):
        facts["backend_source"] = source_digest(backend)
    if device == "cuda":
        torch = import_torch()
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts |= {
            "driver": _driver(),
            "cuda": str(torch.version.cuda),
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": str(properties.multi_processor_count),
            "l2_bytes": str(getattr(properties, "L2_cache_size", "unknown")),
            "memory_bytes": str(device_memory()),
        }
    return facts


def problems(facts: Mapping[str, str]) -> list[str]:
    """The facts that contradict each other, each with its remedy."""
    contradictions = []
    if facts["backend"] == "fbgemm":
        wanted = MATCHING_TORCH.get(".".join(facts["fbgemm"].split(".")[:2]))
        if wanted is not None and ".".join(facts["torch"].split(".")[:2]) != wanted:
            contradictions.append(
                f"FBGEMM {facts['fbgemm']} is built for torch {wanted}, here is torch {facts['torch']}; install a pair that matches"
            )
        try:
            load_backend("fbgemm")
        except ShardwrightError as error:
            contradictions.append(str(error))
        except OSError as error:  # a library of FBGEMM does not find another library
            contradictions.append(
                f"FBGEMM {facts['fbgemm']} cannot be loaded ({error}); install the build for this torch and CUDA"
            )
    return contradictions


def _driver() -> str:
    """Version of the GPU's driver; "unknown" if nvidia-smi does not report it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else "unknown"


@dataclass(frozen=True)
class CopyTime:
    """The time to copy a buffer to another on the same device.

    Attributes:
        size_bytes: bytes copied: this many are read, and this many written.
        ms: time of the copy.
    """

    size_bytes: int
    ms: float

    @property
    def bytes_per_s(self) -> float:
        """Bytes read and written per second."""
        return 2e3 * self.size_bytes / self.ms


def copy_times(device: str, sizes: Sequence[int] | None = None) -> list[CopyTime]:
    """Measure copies of several sizes; skips sizes that do not fit the free memory.

    Args:
        device: "cpu" or "cuda".
        sizes: bytes to copy; by default `SIZES` of the device.
    """
    import torch

    where = torch.device(device)
    clock, policy = clock_of(where), TimingPolicy.of(where.type)
    times = []
    for size in sizes or SIZES[where.type]:
        if 2 * (_BUFFERS + 1) * size > free_memory(where):
            continue
        # Random bytes, since constant ones may be faster to move.
        sources = [torch.empty(size // 8, dtype=torch.int64, device=where).random_() for _ in range(_BUFFERS)]
        targets = [torch.empty_like(source) for source in sources]

        def copy(run: int, sources: list[torch.Tensor] = sources, targets: list[torch.Tensor] = targets) -> None:
            targets[run % _BUFFERS].copy_(sources[run % _BUFFERS])

        times.append(CopyTime(size, time_parts([copy], clock, policy, Steady(), _BUFFERS).parts_ms[0]))
    return times


def of_memory(times: Sequence[CopyTime], device: str) -> list[CopyTime]:
    """The copies that show the bandwidth of memory: those far larger than the last-level cache, else the largest.

    Raises:
        MeasurementFailed: `times` is empty.
    """
    if not times:
        raise MeasurementFailed(
            f"bandwidth: not even a copy of {min(SIZES[device])} bytes fits the free memory of {device}; end what else uses it"
        )
    least = min(FAR_ABOVE_CACHE[device], max(time.size_bytes for time in times))
    return [time for time in times if time.size_bytes >= least]


def ceiling(times: Sequence[CopyTime], device: str) -> float:
    """Bytes per second of the fastest copy in memory; copies in a cache do not count."""
    return max(time.bytes_per_s for time in of_memory(times, device))


@telling_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m shardwright.measure.checks", description="Check this machine.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the samples, for checks.json")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", metavar="NAME", help=BACKEND_HELP)
    parser.add_argument("--seed", type=int, help="of the kernels' inputs (default: a new one)")
    options = parser.parse_args(arguments)
    wrong = check_machine(options.output, options.device, options.backend, seed=options.seed)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
