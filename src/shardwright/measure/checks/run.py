"""All checks of a machine, and the file that says how they went."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import MeasurementFailed
from shardwright.files import read_text, write_atomically
from shardwright.measure.backend import default_backend
from shardwright.measure.checks import CHECKS
from shardwright.measure.checks.environment import environment, problems

if TYPE_CHECKING:
    from shardwright.measure.checks.correctness import Check


def check_machine(
    folder: Path,
    device: str,
    backend: str | None = None,
    *,
    seed: int | None = None,
    say: Callable[[str], None] = print,
) -> list[str]:
    """Check environment and kernels, and measure copies; the outcome goes to `checks.json` in the folder of the samples.

    Where that file says that the same machine has passed, nothing is done.

    Args:
        folder: made if it does not exist.
        device: "cpu" or "cuda".
        backend: "fbgemm", "embedding_bag" or one's own as "package.module:ClassName"; by default fbgemm where it is installed.
        seed: of the kernels' inputs; by default a new one.
        say: is given what comes out, line by line.

    Returns:
        What is wrong, each with its remedy; nothing where samples can be collected.

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
    found: dict[str, Any] = {"environment": facts, "problems": problems(facts)}
    if not found["problems"]:
        found |= _run(device, backend, time.time_ns() % 2**31 if seed is None else seed, say)
    found["passed"] = not found["problems"]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(found, indent=2) + "\n")
    for problem in found["problems"]:
        say(f"problem: {problem}")
    say("" if found["problems"] else "all checks passed")
    return list(found["problems"])


def require_checked(
    folder: Path, device: str, backend: str | None, *, say: Callable[[str], None] | None = None
) -> None:
    """Check a machine as `check_machine` does, and go on only where nothing is wrong.

    Args:
        folder: of the samples.
        device: "cpu" or "cuda".
        backend: as for `check_machine`.
        say: is given what comes out, line by line; by default nobody is told.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: torch or the backend is not installed.
        MeasurementFailed: something is wrong.
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
    from shardwright.measure.checks.bandwidth import ceiling, copy_times, of_memory
    from shardwright.measure.checks.correctness import check_kernels

    checks = check_kernels(device, backend, seed=seed)
    for line in _lines(checks):
        say(line)
    times = copy_times(device)
    far = of_memory(times, device)
    for one in times:
        rate = f"{one.bytes_per_s / 1e9:7.1f} GB/s read and written"
        say(
            f"copy of {one.size_bytes / 2**20:7.0f} MiB: {one.ms:8.3f} ms, {rate}{'' if one in far else ', in part by a cache'}"
        )
    return {
        "seed": seed,
        "kernels": [_as_data(check) for check in checks],
        "copies": [asdict(one) | {"bytes_per_s": one.bytes_per_s, "of_memory": one in far} for one in times],
        "ceiling_bytes_per_s": ceiling(times, device),
        "problems": _wrong(checks, backend),
    }


def _wrong(checks: Sequence[Check], backend: str) -> list[str]:
    """What is wrong with the kernels."""
    if all(check.refused for check in checks):
        return [f"backend {backend} refuses every call, the first with: {checks[0].refused}"]
    return [
        f"kernels compute something else than the reference: {check.name}{f' ({check.fault})' if check.fault else ''}; "
        "collect nothing before that is understood"
        for check in checks
        if not check.passed
    ]


def _lines(checks: Sequence[Check]) -> Iterator[str]:
    """The checks for people: a line for each call, and one for each reason to refuse calls."""
    for check in checks:
        if not check.refused:
            errors = f"forward {check.forward:.1e}  weights {check.weights:.1e}  state {check.state:.1e}"
            yield f"{'ok   ' if check.passed else 'WRONG'} {check.name:56} {check.fault or errors}"
    for reason, calls in Counter(check.refused for check in checks if check.refused).items():
        yield f"none  {calls} calls are refused: {reason}"


def _as_data(check: Check) -> dict[str, Any]:
    """A check as JSON has it, which knows no NaN."""
    values = asdict(check) | {"passed": check.passed}
    return {name: None if isinstance(value, float) and isnan(value) else value for name, value in values.items()}
