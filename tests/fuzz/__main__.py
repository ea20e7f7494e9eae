"""Run the fuzz: see the package."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import multiprocessing
import os
import pkgutil
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz import cases, material, process, verdict

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
HEADS = ("command", "cases", "exit 0", "exit 1", "exit 2", "exit 130", "killed", "slowest s", "most MB", "findings")
PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where something was found."""
    options = _parsed(arguments)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        files = Path(scratch, "material")
        files.mkdir()
        _prepare(files)
        numbers = range(options.first, options.first + options.cases) if options.case is None else [options.case]
        start, records = time.monotonic(), []
        for record in _all(numbers, options.seed, files, Path(scratch), options.workers):
            records.append(record)
            if record["findings"] or options.case is not None:
                print(json.dumps(record, indent=1, ensure_ascii=True), file=sys.stderr)
            if options.case is None and len(records) % 500 == 0:
                print(f"{len(records)}/{len(numbers)} cases, {time.monotonic() - start:.0f} s", file=sys.stderr)
        if options.case is not None:
            _keep(options.case, options.seed, files, options.keep)
    return _told(records, time.monotonic() - start, options)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--case", type=int, help="only this one, and say everything about it")
    parser.add_argument("--keep", type=Path, help="with --case: put its files here")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name} among the results")
    return parser.parse_args(arguments)


def _prepare(files: Path) -> None:
    """Import everything and compile every search here, once; make the valid files in a child, for that starts threads."""
    ran = process.run(lambda: material.make(files) or 0, files, process.Limits(seconds=600))
    if ran.code:
        raise SystemExit(ran.err.decode())
    import shardwright
    from shardwright.testing.tasks import task_of

    for module in pkgutil.walk_packages(shardwright.__path__, "shardwright."):
        if not any(part in module.name for part in ("__main__", "cluster", "torchrec", "ray", "runtime")):
            importlib.import_module(module.name)
    for library in ("fbgemm_gpu", "polars", "pyarrow.parquet", "torch.optim"):
        importlib.import_module(library)
    for strategy in cases.SEARCHES.split("/"):
        shardwright.plan(task_of(7, 2, hosts=2), strategy=strategy, time_limit=0.2)
    gc.collect()
    gc.freeze()


def _all(numbers: Sequence[int], seed: int, files: Path, scratch: Path, workers: int) -> Iterator[dict[str, Any]]:
    """Records of all cases, as they end."""
    context = multiprocessing.get_context("fork")
    queue, following = context.SimpleQueue(), context.Value("l", 0)

    def work() -> None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
        while True:
            with following.get_lock():
                index, following.value = following.value, following.value + 1
            if index >= len(numbers):
                return
            try:
                queue.put(judged(numbers[index], seed, files, scratch))
            except BaseException as error:
                queue.put(f"case {numbers[index]}: {''.join(traceback.format_exception(error))}")

    crew = [context.Process(target=work, daemon=True) for _ in range(min(workers, len(numbers)))]
    for worker in crew:
        worker.start()
    for _ in numbers:
        record = queue.get()
        if isinstance(record, str):
            raise SystemExit(f"the fuzz itself fails in {record}")
        yield record
    for worker in crew:
        worker.join()


def judged(number: int, seed: int, files: Path, scratch: Path) -> dict[str, Any]:
    """Run a case and judge it."""
    folder = scratch / f"case-{number}"
    folder.mkdir()
    case = cases.draw_case(number, seed, files, folder)
    before = verdict.snapshot(folder)
    start = process.fresh(case.argv) if case.interpreter else process.forked(case.argv)
    ran = process.run(start, folder, case.limits)
    found = [text for text in verdict.findings(case, ran, before) if text]
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "case": number, "command": case.command, "mode": case.mode, "argv": case.argv, "code": ran.code, "seconds": ran.seconds,
        "inputs": {name: f"{one.kind} {one.done}".strip() for name, one in case.inputs.items()}, "memory": ran.memory, "findings": found,
        "stderr": ran.err[-3000:].decode("utf-8", "backslashreplace"), "stdout": ran.out[-500:].decode("utf-8", "backslashreplace"),
    }  # fmt: skip


def _keep(number: int, seed: int, files: Path, folder: Path | None) -> None:
    if folder is not None:
        folder.mkdir(parents=True)
        cases.draw_case(number, seed, files, folder)
        print(f"its files: {folder}", file=sys.stderr)


def _row(name: str, records: Sequence[dict[str, Any]]) -> list[object]:
    codes = Counter(record["code"] for record in records)
    return [
        name, len(records), *(codes[code] for code in (0, 1, 2, 130)), sum(count for code, count in codes.items() if code < 0),
        f"{max(record['seconds'] for record in records):.1f}", max(record["memory"] for record in records) >> 20,
        sum(bool(record["findings"]) for record in records),
    ]  # fmt: skip


def _told(records: list[dict[str, Any]], seconds: float, options: argparse.Namespace) -> int:
    from shardwright.files import write_atomically
    from shardwright.reproduce.experiment import ResultTable
    from shardwright.reproduce.pages import markdown

    rows = [
        _row(name, [one for one in records if one["command"] == name])
        for name in dict.fromkeys(one["command"] for one in records)
    ]
    rows.append(_row("all", records))
    if options.json:
        print(json.dumps({"seconds": seconds, "rows": [dict(zip(HEADS, row, strict=True)) for row in rows]}, indent=1))
    else:
        caption = (
            f"{len(records):,} cases of seed {options.seed} in {seconds / 60:.1f} minutes. A finding is a case with a traceback, a hang, a "
            "file that is half-written, changed or left behind, an error that names nothing, or a plan that breaks a rule. Memory is above "
            "that of the process from which the case was forked."
        )
        command = " ".join(["python -m tests.fuzz", *sys.argv[1:]])
        text = markdown("Fuzz", (), [ResultTable(caption, HEADS, rows)], command, None)
        print(text)
        if options.page:
            write_atomically(PAGE, text)
    return int(any(record["findings"] for record in records))


if __name__ == "__main__":
    if not all(name in os.environ for name in ONE_THREAD):  # read when the libraries are loaded
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]],
            os.environ | dict.fromkeys(ONE_THREAD, "1"),
        )
    sys.exit(main())
