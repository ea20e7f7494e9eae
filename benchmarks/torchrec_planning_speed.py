"""Planning time of TorchRec's `EmbeddingShardingPlanner` and of ours: writes results/torchrec_planning_speed.md.

    python -m benchmarks.torchrec_planning_speed [--both 40x8,200x16,1000x64] [--ours 5000x1024] [--repeats 3] [--limit 300]

Both plan the same EmbeddingBagCollections on the meta device: tables of 1,000 to 10 million rows (log-uniform) and dims 16 to 128, CUDA
devices of TorchRec's default sizes, 8 to a host, batch 512 on each, no constraints, no statistics, the same storage reservation. A time is
that of `plan()`, with module traversal and conversion, without imports. Our processes plan several models each; the first plan also loads
libraries, so it has separate columns. TorchRec's planner gets the first of these models in its own process, for at most --limit seconds.
Sizes and planners take turns. Our cost model predicts the steps of both plans.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.program import HIDDEN, Options, Size, options_of, run_apart, size_of

PLANNERS = ("torchrec", "shardwright")
_BATCH = 512  # samples of each device
_START_S = 180  # for imports


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    if options.point:
        print(json.dumps(plan_here(options.planner, options.point, options.repeats, options.seed)))
        return
    from benchmarks.results_table import command_of, write_results

    answers: dict[tuple[str, Size], list[dict[str, Any] | None]] = {}
    for repeat in range(options.repeats):
        for size in options.both:
            for planner in PLANNERS:
                answers.setdefault((planner, size), []).append(measured(planner, size, repeat, options))
    for size in options.ours:
        answers["shardwright", size] = [measured("shardwright", size, 0, options)]
    write_results(
        "torchrec_planning_speed",
        "Planning for TorchRec: TorchRec's planner and ours",
        [(caption(options), HEADS, [row_of(size, answers, options) for size in (*options.both, *options.ours)])],
        command_of("torchrec_planning_speed", arguments),
    )


HEADS = (
    "tables × devices", "TorchRec s", "ours s", "ours, first of a process, s", "times faster", "first: times faster", "gap to the bound",
    "gap, first", "step of TorchRec's plan over ours",
)  # fmt: skip


def caption(options: Options) -> str:
    return (
        f"Seconds of `plan()`, medians of {options.repeats} processes for TorchRec, of {options.repeats} models in each process for ours; "
        f"TorchRec for at most {options.limit} s. Gaps are those of our plans to the bound (medians); steps are predicted."
    )


def row_of(size: Size, answers: dict[tuple[str, Size], list[dict[str, Any] | None]], options: Options) -> list[str]:
    """Return the table's row of a size, with a dash for each figure that no process gave."""
    theirs, ours = answers.get(("torchrec", size), []), answers["shardwright", size]
    ended = [answer for answer in ours if answer]
    first = middle(answer["first_s"] for answer in ended)
    later = middle(seconds for answer in ended for seconds in answer["later_s"])
    pairs = [(answer, own) for answer, own in zip(theirs, ours, strict=False) if answer and own]
    sign = "> " if None in theirs else ""
    limit = float(options.limit) if sign else middle(answer["first_s"] for answer in theirs if answer)
    figures = [
        (sign, limit, ".1f"), ("", later, ".3f"), ("", first, ".2f"), (sign, limit / later, ".0f"), (sign, limit / first, ".0f"),
        ("", middle(gap for answer in ended for gap in answer["gaps"][1:]), ".1%"),
        ("", middle(answer["gaps"][0] for answer in ended), ".1%"),
        ("", middle(answer["steps_ms"][0] / own["steps_ms"][0] for answer, own in pairs), ".2f"),
    ]  # fmt: skip
    cells = ("–" if math.isnan(value) else f"{above}{value:{form}}" for above, value, form in figures)
    return [f"{size[0]} × {size[1]}", *cells]


def middle(values: Iterable[float]) -> float:
    """Return the median; NaN without values."""
    return statistics.median(known) if (known := list(values)) else math.nan


def measured(planner: str, size: Size, repeat: int, options: Options) -> dict[str, Any] | None:
    """Plan in a separate process and return what it prints; None if it does not end in time, nothing if it fails."""
    given = [
        "--planner", planner, "--point", f"{size[0]}x{size[1]}", "--repeats", options.repeats, "--seed", 100 * repeat,
    ]  # fmt: skip
    begin = time.monotonic()
    try:
        answer: dict[str, Any] = run_apart("torchrec_planning_speed", *given, timeout_s=options.limit + _START_S)
    except subprocess.TimeoutExpired:
        print(f"{planner} {size}: not within {options.limit} s", file=sys.stderr)
        return None
    except subprocess.CalledProcessError as error:
        print(f"{planner} {size}: failed\n{error.stderr}", file=sys.stderr)
        return {}
    print(f"{planner} {size}: {answer} ({time.monotonic() - begin:.0f} s in all)", file=sys.stderr)
    return answer


def plan_here(planner: str, size: Size, repeats: int, seed: int) -> dict[str, Any]:
    """Plan in this process: one model with TorchRec, one more than there are repeats with ours."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    seconds, gaps, steps = [], [], []
    for index in range(1 if planner == "torchrec" else repeats + 1):
        model, sharders, made = model_of(size[0], seed + index), sharders_of(), planner_of(planner, size[1])
        begin = time.perf_counter()
        plan = made.plan(model, sharders)
        seconds.append(time.perf_counter() - begin)
        if planner == "shardwright":
            gaps.append(made.last_plan.gap)
        steps.append(step_ms_of(plan, model, sharders, made))
    return {"first_s": seconds[0], "later_s": seconds[1:], "gaps": gaps, "steps_ms": steps}


def step_ms_of(plan: Any, model: Any, sharders: list[Any], planner: Any) -> float:
    """Return the step time that our cost model predicts for a sharding plan of either planner."""
    from shardwright.cost.score import score
    from shardwright.integrations.torchrec import plan_of, problem_of
    from shardwright.integrations.torchrec.topology import default_cost_model

    problem = problem_of(model, sharders, planner._topology, _BATCH)
    return score(
        problem.task, plan_of(plan, problem).shards, default_cost_model(planner._topology, problem.task)
    ).step_ms


def model_of(tables: int, seed: int) -> Any:
    """Return a collection of random tables on the meta device."""
    import torch
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    random = np.random.default_rng(seed)
    rows = np.rint(10 ** random.uniform(3, 7, tables)).astype(int).tolist()
    dims = random.choice([16, 32, 64, 128], tables).tolist()
    configs = [
        EmbeddingBagConfig(name=f"t{i}", num_embeddings=n, embedding_dim=dim, feature_names=[f"f{i}"])
        for i, (n, dim) in enumerate(zip(rows, dims, strict=True))
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def sharders_of() -> list[Any]:
    """Return TorchRec's default sharders."""
    from torchrec.distributed.sharding_plan import get_default_sharders

    return list(get_default_sharders())


def planner_of(name: str, devices: int) -> Any:
    """Return TorchRec's planner or ours, with the same settings."""
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
    from torchrec.distributed.planner.types import Topology

    from shardwright.integrations.torchrec import ShardwrightPlanner

    kind = EmbeddingShardingPlanner if name == "torchrec" else ShardwrightPlanner
    topology = Topology(devices, "cuda", local_world_size=min(8, devices))
    return kind(topology, _BATCH, storage_reservation=FixedPercentageStorageReservation(0.15), stats=[])


def sizes_of(text: str) -> tuple[Size, ...]:
    return tuple(map(size_of, filter(None, text.split(","))))


def parsed(arguments: Sequence[str] | None) -> Options:
    return options_of(
        __doc__, arguments, both=("40x8,200x16,1000x64", "sizes for both planners", sizes_of),
        ours=("5000x1024", "sizes for ours alone", sizes_of), repeats=3, limit=(300.0, "seconds that TorchRec's planner may take"),
        planner=("shardwright", HIDDEN, PLANNERS), point=(None, HIDDEN, size_of), seed=(0, HIDDEN),
    )  # fmt: skip


if __name__ == "__main__":
    main()
