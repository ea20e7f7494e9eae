"""The strategies `hugectr` and `tzrec`, written anew here, against the planners' own code, on the same random inputs.

    python -m benchmarks.rival_sources --hugectr planner.py --tzrec plan_util.py      # results/rival_sources.md

`planner.py` is in `benchmarks/embedding_collection/hugectr/sharding` of NVIDIA-Merlin/HugeCTR, `plan_util.py` in `tzrec/utils` of
alibaba/TorchEasyRec. Only their numpy code runs here: HugeCTR's whole planner, and TorchEasyRec's dynamic programming over memory. Memory
is that of the weights alone, as HugeCTR counts it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import shardwright as sw
from benchmarks.program import options_of
from benchmarks.results_table import write_results
from shardwright.errors import InfeasibleTask
from shardwright.search.hugectr import HugeCTR, Planner

ALIKE = 1e-9  # relative difference of two costs that are sums of the same floats


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, cases=(150, "random cases of each kind"),
        hugectr=(Path, "HugeCTR's planner.py", {"required": True}), tzrec=(Path, "TorchEasyRec's plan_util.py", {"required": True}),
    )  # fmt: skip
    rng = np.random.default_rng(52)
    theirs = _module(options.hugectr)
    rows = [
        _row(name, [_of_hugectr(theirs, rng, hierarchical=hierarchical, columns=columns) for _ in range(options.cases)])
        for name, hierarchical, columns in (
            ("`hugectr`", False, True), ("`hugectr`, rows only", False, False),
            ("`hugectr_hier`", True, True), ("`hugectr_hier`, rows only", True, False),
        )
    ]  # fmt: skip
    own = _function(options.tzrec, "_sparse_dp_proposor_numpy", "_argmin_per_group")
    rows += [
        _row(name, [_of_tzrec(own, rng, exact=exact) for _ in range(options.cases)])
        for name, exact in (("`tzrec`", False), ("`tzrec`, sizes without rounding", True))
    ]
    write_results(
        "rival_sources",
        "Planners written anew, against their own code",
        [
            (
                "Random cases. Alike: equal costs of the best candidates of HugeCTR's planner, to nine digits, and equal lists of "
                "proposals of TorchEasyRec's, whose code rounds to 32 bits. Without a plan: cases for which both find none.",
                ("strategy", "cases", "alike", "without a plan"),
                rows,
            )
        ],
        f"python -m benchmarks.rival_sources --cases {options.cases} --hugectr planner.py --tzrec plan_util.py",
    )


def _row(name: str, outcomes: Sequence[tuple[bool, bool]]) -> list[object]:
    alike, none = np.array(outcomes).sum(axis=0).tolist()
    return [name, len(outcomes), alike, none]


def _of_hugectr(theirs: Any, rng: np.random.Generator, *, hierarchical: bool, columns: bool) -> tuple[bool, bool]:
    """Whether both planners' best candidates of a random task cost the same, and whether there is none."""
    hosts, near = int(rng.choice([2, 4, 8] if hierarchical else [1, 2, 4, 8])), int(rng.choice([2, 4]))
    count = int(rng.integers(1, 40))
    lookups, dims = np.exp(rng.normal(1.5, 1.2, count)), rng.choice([8, 16, 32, 64, 96, 128, 256], count)
    rows = (2 ** rng.integers(10, 22, count) * rng.integers(1, 4, count)).astype(int)
    memory = int((rows * dims * 4).sum() / (hosts * near) * float(rng.choice([1.02, 1.2, 1.5, 3, 100])))
    bandwidth, work = float(rng.choice([1, 8, 60])), float(rng.choice([1, 4]))
    sizes = dims * 4.0 / (near if hierarchical else 1)
    costs = theirs.CostModel(1.0, bandwidth, work, 0, 1, sizes, dims, memory, rows.tolist())
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            planner = theirs.Planner(lookups.tolist(), dims, hosts, near, 1, hierarchical, costs, 20, columns)
            planner.plan()
        best = planner.list_candidate[0][0]
    except Exception:  # it raises bare exceptions of several kinds if no candidate fits
        best = None
    tables = [
        sw.Table(f"t{index}", *each)
        for index, each in enumerate(zip(rows.tolist(), dims.tolist(), lookups, strict=True))
    ]
    task = sw.Task(tables, sw.Topology(hosts, near, "h100", memory), 1)
    ours = HugeCTR(hierarchical=hierarchical, columns=columns, bandwidth_ratio=bandwidth, work_ratio=work)
    try:
        cost = Planner(task, ours, bytes_of=lambda _, shard: 4 * shard.area).best().cost
    except InfeasibleTask:
        cost = None
    both = best is not None and cost is not None and abs(best - cost) <= ALIKE * best
    return both or best is cost is None, best is cost is None


def _of_tzrec(own: Callable[..., Any], rng: np.random.Generator, *, exact: bool) -> tuple[bool, bool]:
    """Whether both list the same proposals for random options, and whether there are none."""
    from shardwright.integrations.torchrec.proposers import cheapest_by_memory

    bins, tables = int(rng.integers(1, 9)) * 100, []
    count = int(rng.integers(1, 30))
    for _ in range(count):
        many = int(rng.integers(1, 7)) if rng.random() < 0.98 else int(rng.integers(0, 2))
        sizes, costs = np.sort(rng.gamma(1.5, bins / count / 2, many)), rng.gamma(2, 3, many)
        tables.append((np.sort(np.round(sizes * 8) / 8), np.round(costs * 64) / 64) if exact else (sizes, costs))
    small = np.float32
    given = [
        (sizes.astype(small), np.zeros(len(sizes), small), costs.astype(small), np.arange(len(sizes), dtype=np.int32))
        for sizes, costs in tables
    ]
    proposals = own(given, bins, 1)
    return proposals == cheapest_by_memory(tables, float(bins), bins), not proposals


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("their_planner", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _function(path: Path, name: str, *helpers: str) -> Callable[..., Any]:
    """A numpy function of a module whose imports are absent."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in (name, *helpers)]
    tree.body.insert(0, ast.ImportFrom("__future__", [ast.alias("annotations")], 0))  # their types are absent, too
    scope: dict[str, Any] = {"np": np}
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), scope)
    function: Callable[..., Any] = scope[name]
    return function


if __name__ == "__main__":
    main()
