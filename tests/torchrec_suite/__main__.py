"""Run TorchRec's tests with both planners: see the package."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from shardwright.files import write_atomically
from tests.torchrec_suite.reasons import REASONS

REPOSITORY = Path(__file__).parents[2]
SWAP = Path(__file__).parent / "swap"
PAGE = REPOSITORY / "benchmarks" / "results" / "torchrec_suite.md"
PLANS = re.compile(
    r"EmbeddingShardingPlanner|DistributedModelParallel\b|DMPCollection|ModelParallel\w*Base|ModelParallelTestShared|"
    r"sharding_single_rank_test|get_planner"
)
"""Names in test files that plan, themselves or by TorchRec's helpers."""

API = "torchrec/schema/"
"""Tests of this folder look at the planner's signatures; they plan nothing."""

PASSED, REASON, FAULT = "passed", "reason", "fault"
HEADS = ("test file", "plan", "pass with TorchRec's", "pass with ours", "not, for a reason", "faults")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a test fails with our planner alone, 2 without a checkout or TorchRec."""
    options = _parsed(arguments)
    missing = _missing(options.checkout)
    if missing:
        print(missing, file=sys.stderr)
        return 2
    tests = options.checkout / "torchrec"
    files = [path for path in sorted(tests.rglob("test_*.py")) if "test_utils" not in path.parts]
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    names = [str(path.relative_to(options.checkout)) for path in files if PLANS.search(path.read_text())]
    judged: dict[str, dict[str, str]] = {}
    unplanned: Counter[str] = Counter()
    for name in filter(re.compile(options.files).search, names):
        kept = options.keep / f"{name.replace('/', '.')}.json" if options.keep else None
        judged[name], others = json.loads(kept.read_text()) if kept and kept.is_file() else _of_file(name, options)
        unplanned.update(others)
        if kept:
            write_atomically(kept, json.dumps([judged[name], others]))
        told = ", ".join(f"{count} {what}" for what, count in Counter(judged[name].values()).items())
        print(f"{name}: {told or 'nothing plans here'}", file=sys.stderr, flush=True)
    _tell(judged, unplanned, options)
    return int(any(said.startswith(FAULT) for of_file in judged.values() for said in of_file.values()))


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torchrec_suite", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of TorchRec's repository at the installed release")
    parser.add_argument("--only", default="", help="tests to run, as pytest's -k takes them")
    parser.add_argument("--files", default="", help="only test files whose path has this regular expression")
    parser.add_argument(
        "--keep", type=Path, help="a folder for what became of each file; files found there are not run again"
    )
    parser.add_argument("--limit", type=float, default=3000, help="seconds that the tests of one file may take")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name} among the results")
    return parser.parse_args(arguments)


def _missing(checkout: Path) -> str:
    """Why the tests cannot run; empty if they can."""
    try:
        installed = version("torchrec")
    except PackageNotFoundError:
        return "TorchRec is not installed; see docs/index.md"
    release = checkout / "version.txt"
    if not release.is_file() or not (checkout / "torchrec").is_dir():
        return f"{checkout} is no checkout of TorchRec: it has no version.txt and torchrec/; check out release/v{installed}"
    if release.read_text().strip() != installed:
        return f"{checkout} is TorchRec {release.read_text().strip()}, installed is {installed}; check out release/v{installed}"
    return ""


def _of_file(name: str, options: argparse.Namespace) -> tuple[dict[str, str], dict[str, int]]:
    """The verdict on our planner of each test of a file that plans, and the number of other tests by outcome."""
    theirs, times = _run("torchrec", [name], options)
    planning = [test for test in theirs if name.startswith(API) or any(_during(time, theirs[test]) for time in times)]
    ours = _run("shardwright", planning, options)[0] if planning else {}
    others = Counter(theirs[test]["outcome"] for test in theirs if test not in planning)
    return {test: _judged(test, theirs[test], ours.get(test)) for test in planning}, others


def _run(
    planner: str, tests: Sequence[str], options: argparse.Namespace
) -> tuple[dict[str, dict[str, Any]], list[float]]:
    """The outcome of each test, and the times at which planners were made or planned."""
    with tempfile.TemporaryDirectory(prefix="torchrec-suite-") as scratch:
        outcomes, planned = Path(scratch, "outcomes"), Path(scratch, "planned")
        outcomes.touch()
        planned.touch()
        paths = [str(SWAP), str(options.checkout.resolve()), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "SUITE_PLANNER": planner,
            "SUITE_PLANNED": str(planned),
            "SUITE_OUTCOMES": str(outcomes),
        }
        only = ["-k", options.only] if options.only else []
        command = [sys.executable, "-m", "pytest", "-q", "-p", "recorder", "-p", "no:cacheprovider", *only, *tests]
        try:
            subprocess.run(
                command,
                cwd=options.checkout,
                env=environment,
                timeout=options.limit,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{tests[0]} …: beyond {options.limit} s with {planner}", file=sys.stderr)
        results: dict[str, dict[str, Any]] = {}
        for line in map(json.loads, outcomes.read_text().splitlines()):
            known = results.setdefault(line["test"], line)
            if known["outcome"] == PASSED:  # a later stage or a subtest may fail
                results[line["test"]] = line | {"from": known["from"]}
        return results, [float(time) for time in planned.read_text().split()]


def _during(time: float, ran: dict[str, Any]) -> bool:
    return bool(ran["from"] <= time <= ran["to"])


def _judged(test: str, theirs: dict[str, Any], ours: dict[str, Any] | None) -> str:
    """A test's verdict on our planner: passed, a lasting reason, a fault, or nothing if it fails with TorchRec's planner too."""
    if theirs["outcome"] != PASSED:
        return f"{theirs['outcome']} with TorchRec's planner"
    if ours is None:
        return f"{FAULT}: no outcome, the process ended or took too long"
    if ours["outcome"] == PASSED:
        return PASSED
    reason = REASONS.get(test.partition("::")[2])
    return f"{REASON}: {reason}" if reason else f"{FAULT}: {_last_line(ours['said'])}"


def _last_line(said: str) -> str:
    """The error that a report ends with, or, of several processes, the one that names an exception."""
    errors = [line.removeprefix("E").strip() for line in said.splitlines() if line.startswith("E ")]
    return (errors or said.splitlines() or ["failed"])[0][:200]


def _tell(judged: dict[str, dict[str, str]], unplanned: Counter[str], options: argparse.Namespace) -> None:
    from experiments.experiment import ResultTable
    from experiments.pages import markdown

    rows = [_row(name.removeprefix("torchrec/"), list(of_file.values())) for name, of_file in judged.items() if of_file]
    rows.append(_row("all", [said for of_file in judged.values() for said in of_file.values()]))
    failures = [
        (test.partition("::")[2], said)
        for of_file in judged.values()
        for test, said in of_file.items()
        if said != PASSED
    ]
    others = ", ".join(f"{count} {outcome}" for outcome, count in sorted(unplanned.items()))
    caption = (
        f"Tests of TorchRec {version('torchrec')} that make a planner or plan, with TorchRec's planner and with ours. The other "
        f"tests of these {len(judged)} files ran once, with TorchRec's: {others}; those skipped need a GPU."
    )
    tables = [ResultTable(caption, HEADS, rows)]
    if failures:
        tables.append(ResultTable("Tests that do not pass with ours.", ("test", "why"), failures))
    given = "".join(f" --{name} '{value}'" for name in ("only", "files") if (value := getattr(options, name)))
    command = f"python -m tests.torchrec_suite CHECKOUT{given} --page"
    text = markdown("TorchRec's own tests with our planner", (), tables, command)
    print(text)
    if options.page:
        write_atomically(PAGE, text)


def _row(name: str, said: list[str]) -> tuple[str, int, int, int, int, int]:
    count = Counter(verdict.partition(":")[0] for verdict in said)
    alike = count[PASSED] + count[REASON] + count[FAULT]
    return name, len(said), alike, count[PASSED], count[REASON], count[FAULT]


if __name__ == "__main__":
    sys.exit(main())
