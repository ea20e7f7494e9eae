"""Run the fuzz: see the package."""

from __future__ import annotations

import argparse
import gc
import importlib
import io
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
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from tests.fuzz import cases, material, process, verdict

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
HEADS = ("command", "cases", "exit 0", "exit 1", "exit 2", "exit 130", "killed", "slowest s", "most MB", "findings")
PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a case has a finding."""
    options = _parsed(arguments)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        files = Path(scratch, "material")
        files.mkdir()
        _prepare(files)
        start, records = time.monotonic(), []
        if options.case is not None:
            folder = options.keep or Path(scratch, "case")
            records = [judged(options.case, options.seed, files, folder)]
            print(json.dumps(records[0], indent=1), file=sys.stderr)
        for record in _all(options.cases if options.case is None else 0, options.seed, files, options.workers):
            records.append(record)
            if record["findings"]:
                print(json.dumps(record, indent=1), file=sys.stderr)
            if len(records) % 500 == 0:
                print(f"{len(records)}/{options.cases} cases, {time.monotonic() - start:.0f} s", file=sys.stderr)
    return _told(records, time.monotonic() - start, options)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--case", type=int, help="only this one, and say everything about it")
    parser.add_argument("--keep", type=Path, help="with --case: a folder to make, for its files")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name} among the results")
    return parser.parse_args(arguments)


def _prepare(files: Path) -> None:
    """Import everything here, once; make the valid files in a child, since that starts threads."""
    import shardwright
    from shardwright.cli.main import main as main_of_shardwright
    from shardwright.testing.tasks import task_of

    for module in pkgutil.walk_packages(shardwright.__path__, "shardwright."):
        if not any(part in module.name for part in ("__main__", "cluster", "torchrec", "ray", "runtime")):
            importlib.import_module(module.name)
    for library in ("fbgemm_gpu", "polars", "pyarrow.parquet", "torch.optim"):
        importlib.import_module(library)
    for strategy in cases.SEARCHES.split("/"):
        shardwright.plan(task_of(7, 2, hosts=2), strategy=strategy, time_limit=0.2)
    with redirect_stderr(io.StringIO()):
        main_of_shardwright(["show", "none.json"])  # readers of command lines import parts of themselves late
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()
    ran = process.run(lambda: material.make(files) or 0, files, process.Limits(seconds=600))
    if ran.code:
        raise SystemExit(ran.err.decode())


def _all(count: int, seed: int, files: Path, workers: int) -> Iterator[dict[str, Any]]:
    """Records of the first cases, as they end."""
    context = multiprocessing.get_context("fork")
    queue, following = context.SimpleQueue(), context.Value("l", 0)

    def work() -> None:
        while True:
            with following.get_lock():
                number, following.value = following.value, following.value + 1
            if number >= count:
                return
            folder = files.with_name(f"case-{number}")
            try:
                queue.put(judged(number, seed, files, folder))
            except BaseException as error:
                queue.put(f"case {number}: {''.join(traceback.format_exception(error))}")
            shutil.rmtree(folder, ignore_errors=True)

    processes = [context.Process(target=work, daemon=True) for _ in range(min(workers, count))]
    for process_ in processes:
        process_.start()
    for _ in range(count):
        record = queue.get()
        if isinstance(record, str):
            raise SystemExit(f"the fuzz itself fails in {record}")
        yield record
    for process_ in processes:
        process_.join()


def judged(number: int, seed: int, files: Path, folder: Path) -> dict[str, Any]:
    """Run a case in a new folder, and judge it."""
    folder.mkdir()
    case = cases.draw_case(number, seed, files, folder)
    before = verdict.snapshot(folder)
    start = process.fresh(case.argv) if case.interpreter else process.forked(case.argv)
    ran = process.run(start, folder, case.limits)
    return {
        "case": number, "command": case.command, "mode": case.mode, "argv": case.argv, "code": ran.code, "seconds": ran.seconds,
        "inputs": {name: f"{one.kind} {one.done}".strip() for name, one in case.inputs.items()}, "memory": ran.memory,
        "findings": verdict.findings(case, ran, before),
        "stderr": ran.err[-3000:].decode("utf-8", "backslashreplace"), "stdout": ran.out[-500:].decode("utf-8", "backslashreplace"),
    }  # fmt: skip


def _row(name: str, records: Sequence[dict[str, Any]]) -> list[object]:
    codes = Counter(record["code"] for record in records)
    return [
        name, len(records), *(codes[code] for code in (0, 1, 2, 130)), sum(count for code, count in codes.items() if code < 0),
        f"{max(record['seconds'] for record in records):.1f}", max(record["memory"] for record in records) >> 20,
        sum(bool(record["findings"]) for record in records),
    ]  # fmt: skip


def _told(records: list[dict[str, Any]], seconds: float, options: argparse.Namespace) -> int:
    from experiments.experiment import ResultTable
    from experiments.pages import markdown

    from shardwright.files import write_atomically

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
        os.environ |= dict.fromkeys(ONE_THREAD, "1")
        os.execv(sys.executable, [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]])
    sys.exit(main())
