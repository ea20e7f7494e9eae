"""The page of `steps_measured.py`: measured rows, scored by the current cost function."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from experiments.experiment import ResultTable

from benchmarks import results_table
from shardwright.arrays import Floats
from shardwright.cost import CostModel
from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.collectives import sets_of
from shardwright.cost.score import Traffic, all_to_all_ms, score
from shardwright.integrations.torchrec.steps.rank import RankReport
from shardwright.integrations.torchrec.steps.run import PHASES, STEP, Steps
from shardwright.sharding import Plan
from shardwright.task.links import COLLECTIVES, Links, LinkSpeed, ModuleTimes, links_to_dict
from shardwright.task.task import Task

_CLEARLY = 0.1  # difference of two steps beyond the usual noise of a bed


@dataclass(frozen=True)
class Measured:
    """A row: a plan on a bed, priced anew.

    Attributes:
        row: the row as it was written.
        steps: its measurements, with the plan's cost by the cost function and model of today.
    """

    row: dict[str, Any]
    steps: Steps

    @property
    def case(self) -> tuple[str, str, str]:
        """Bed, rate and model."""
        return self.row["bed"], self.row["rate"], self.row["model"]

    @property
    def names(self) -> list[str]:
        """The strategies that made this plan."""
        return [self.row["plan"], *self.row.get("also", ())]

    def ratio(self, phase: str) -> float:
        """Predicted / measured ms of a phase; NaN if either is 0."""
        predicted, measured = self.steps.predicted(phase), self.steps.measured(phase)
        return predicted / measured if predicted and measured else float("nan")

    @property
    def predicted(self) -> float:
        """Predicted ms of a step."""
        cost = self.steps.plan.cost
        assert cost is not None
        return cost.step_ms

    @property
    def error(self) -> float:
        """Absolute relative error of the predicted step."""
        return abs(self.ratio(STEP) - 1)


def plan_of(document: dict[str, Any]) -> Plan:
    """The plan of a row's document."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(document))
        return Plan.load(file)


def priced(
    rows: Sequence[dict[str, Any]], model: CostModel | None, changed: Callable[[Links], Links] = lambda links: links
) -> list[Measured]:
    """Price the plans of rows over the links that were measured in their beds.

    Args:
        rows: rows of `steps_measured.py` or `runtime_steps.py`.
        model: cost model of the kernels; None for that of this machine.
        changed: changes the links before.
    """
    measured = []
    for row in rows:
        plan = plan_of(row["document"])
        links = plan.task.topology.links or Links()
        task = replace(plan.task, topology=replace(plan.task.topology, links=changed(links)))
        cost = score(task, plan.shards, model or resolve_cost_model(None, task))
        reports = msgspec.convert(row["reports"], list[list[RankReport]])
        measured.append(Measured(row, Steps(replace(plan, task=task, cost=cost, bound_ms=None), reports)))
    return measured


def write_page(
    rows: Sequence[dict[str, Any]], model: CostModel | None, command: str, name: str = "steps_measured"
) -> Path:
    """Write the page of rows; returns its file."""
    every = priced(rows, model)
    usual = [plan for plan in every if not plan.row["huge_pages"]]
    refinements = _refinements(usual, [plan.row for plan in usual], model)
    tables = [
        _beds(usual),
        _phases(usual),
        _plans(usual),
        refinements,
        _rivals(usual),
        _huge_pages(every),
        _links(usual),
    ]
    title, shown = (
        "Steps of TorchRec over slow links, measured and predicted",
        [table for table in tables if table.rows],
    )
    path = results_table.write_measured(name, title, [_summary(usual), *_ABOUT], shown, command, rows, "priced at ")
    _write_rows(usual, path.with_suffix(".parquet"))
    return path


def _write_rows(plans: Sequence[Measured], path: Path) -> None:
    """Keep predicted and measured ms of each plan for `fastest_of`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("bed", "rate", "model")
    rows = [
        dict(zip(names, plan.case, strict=True))
        | {"plan": plan.names[0], "predicted_ms": plan.predicted, "measured_ms": plan.steps.step_ms}
        for plan in plans
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


_ABOUT = (
    "Hosts are network namespaces of one machine; links are limited to their rate in each direction. Ranks train by "
    "DistributedModelParallel over gloo, 512 samples a rank in a step, each step on a fresh batch and started by all ranks at one instant; "
    "four ranks share two cores. A measured step is the slowest rank's, the median of a round's steps, the median of the rounds. "
    "Phases are run one by one, each started together: the forward communication holds lengths, ids and values, the backward one gradients "
    "and the all-reduce of replicas. "
    "Predictions use the links of each bed, as lines through measured times of collectives; times of modules, measured there apart from "
    "the steps; and a kernel model of that machine. Links are measured before the steps, or after them if the command has --links. A "
    "module's time counts half in each kernel phase, so these are predicted longer than their measured kernels alone.",
)


def _summary(plans: Sequence[Measured]) -> str:
    errors = [plan.error for plan in plans]
    spreads = [plan.steps.spread for plan in plans]
    ordered = [right for _, case in grouped(plans, lambda plan: plan.case) for right in _in_order(case)]
    return (
        f"**{len(plans)} plans on beds: predicted steps are off by {np.mean(errors):.1%} (mean), {np.median(errors):.1%} (median)**; "
        f"the rounds of one plan differ by {np.median(spreads):.1%} (median). Of {len(ordered)} pairs of plans of one case whose steps "
        f"differ by more than {_CLEARLY:.0%}, {np.mean(ordered or [np.nan]):.0%} are predicted in the right order."
    )


def _in_order(case: Sequence[Measured]) -> list[bool]:
    """For each pair of plans whose measured steps differ clearly, whether the predictions have the same order."""
    pairs = [sorted(pair, key=lambda plan: plan.steps.step_ms) for pair in combinations(case, 2)]
    clear = [(fast, slow) for fast, slow in pairs if slow.steps.step_ms > (1 + _CLEARLY) * fast.steps.step_ms]
    return [fast.predicted < slow.predicted for fast, slow in clear]


def _beds(plans: Sequence[Measured]) -> ResultTable:
    rows = []
    for (bed, rate), group in grouped(plans, lambda plan: plan.case[:2]):
        models = [_spearman(of_model) for _, of_model in grouped(group, lambda plan: plan.case)]
        rows.append(
            (bed, rate, len(group), _share(np.mean([plan.error for plan in group])),
             f"{ratio_mean(plan.ratio(STEP) for plan in group):.2f}",
             f"{_spearman(group):.2f}", f"{np.nanmean(models):.2f}", _share(np.median([plan.steps.spread for plan in group])))
        )  # fmt: skip
    return ResultTable(
        "Steps by bed (hosts × devices). Spearman: predicted against measured steps of all plans, and the mean over the models of that "
        "among a model's plans. Apart: spread of the rounds of one plan (largest less smallest), median.",
        ("bed", "links", "plans", "mean error", "predicted / measured", "Spearman", "by model", "apart"),
        rows,
    )


def _phases(plans: Sequence[Measured]) -> ResultTable:
    rates, rows = list(dict.fromkeys(plan.case[1] for plan in plans)), []
    for bed, group in grouped(plans, lambda plan: plan.case[0]):
        for phase in (*PHASES, STEP):
            measured = np.median([plan.steps.measured(phase) for plan in group])
            ratios = [ratio_mean(plan.ratio(phase) for plan in group if plan.case[1] == rate) for rate in rates]
            rows.append((bed, phase, f"{measured:.2f}", *(f"{ratio:.2f}" for ratio in ratios)))
    return ResultTable(
        "Phases: measured ms (median over all plans), and predicted / measured (geometric mean) by the rate of the links.",
        ("bed", "phase", "measured ms", *rates),
        rows,
    )


def _plans(plans: Sequence[Measured]) -> ResultTable:
    rows = []
    for name, group in grouped(plans, lambda plan: plan.row["plan"]):
        error = _share(np.mean([plan.error for plan in group]))
        rows.append((name, len(group), error, f"{ratio_mean(plan.ratio(STEP) for plan in group):.2f}"))
    return ResultTable("Steps by plan.", ("plan", "plans", "mean error", "predicted / measured"), rows)


def _every_speed(links: Links, change: Callable[[LinkSpeed], LinkSpeed]) -> Links:
    speeds = {name: tuple(speed and change(speed) for speed in links.of(name)) for name in COLLECTIVES}
    return replace(links, **speeds)


def _all_as_all_to_all(links: Links) -> Links:
    plain = _every_speed(links, lambda speed: replace(speed, following_ms=None, alone=None)).all_to_all
    return replace(links, reduce_scatter=plain, all_gather=plain, all_reduce=plain)


_WITHOUT: dict[str, Callable[[Links], Links]] = {
    "the time of modules": lambda links: replace(links, modules=ModuleTimes()),
    "latencies": lambda links: _every_speed(links, lambda speed: replace(speed, latency_ms=0.0, following_ms=None)),
    "shorter latencies of collectives that follow others": lambda links: _every_speed(
        links, lambda speed: replace(speed, following_ms=None)
    ),
    "faster links of a device that sends alone": lambda links: _every_speed(
        links, lambda speed: replace(speed, alone=None)
    ),
    "a speed for each collective": _all_as_all_to_all,
}


def _one_after_another(traffic: Traffic, task: Task) -> tuple[Floats, Floats]:
    """As `Traffic.milliseconds`, without dense layers, but values wait until all ids have come."""
    forward = sum(all_to_all_ms(task, part) for part in (traffic.ids, traffic.forward.without(traffic.ids)))
    apart = zip(
        (forward, all_to_all_ms(task, traffic.backward)),
        (traffic.forward, traffic.backward),
        traffic.waits,
        strict=True,
    )
    first, second = (ms + flow.apart + wait for ms, flow, wait in apart)
    return first, second


def _refinements(plans: Sequence[Measured], rows: Sequence[dict[str, Any]], model: CostModel | None) -> ResultTable:
    left = [("nothing", plans)] + [(name, priced(rows, model, change)) for name, change in _WITHOUT.items()]
    with mock.patch("shardwright.cost.score.sets_of", lambda task, shards: list(sets_of(task, shards))[:1]):
        left.append(("a set of collectives for each sharding type", priced(rows, model)))
    with mock.patch("shardwright.sharding.work.LENGTH_BYTES", 0):
        left.append(("lengths", priced(rows, model)))
    with mock.patch.object(Traffic, "milliseconds", _one_after_another):
        left.append(("links that ids and values share: one waits for the other", priced(rows, model)))
    shown = []
    for name, of_rest in left:
        ordered = [right for _, case in grouped(of_rest, lambda plan: plan.case) for right in _in_order(case)]
        models = [_spearman(case) for _, case in grouped(of_rest, lambda plan: plan.case)]
        shown.append((
            name, _share(np.mean([plan.error for plan in of_rest])), f"{ratio_mean(plan.ratio(STEP) for plan in of_rest):.2f}",
            f"{np.nanmean(models):.2f}", _share(np.mean(ordered or [np.nan])),
        ))  # fmt: skip
    return ResultTable(
        "What each refinement of the links brings: the same plans and measurements, priced without it.",
        ("left out", "mean error", "predicted / measured", "Spearman by model", "pairs in order"),
        shown,
    )


def _rivals(plans: Sequence[Measured]) -> ResultTable:
    rows = []
    for name in ("torchrec", "torchrec, no statistics", "the fastest of all"):
        for bed, group in (*grouped(plans, lambda plan: plan.case[0]), ("all", list(plans))):
            pairs = [pair for _, case in grouped(group, lambda plan: plan.case) if (pair := _pair(case, name))]
            if pairs:
                predicted = ratio_mean(ours.predicted / theirs.predicted for ours, theirs in pairs)
                measured = ratio_mean(ours.steps.step_ms / theirs.steps.step_ms for ours, theirs in pairs)
                rows.append((name, bed, len(pairs), f"{predicted:.3f}", f"{measured:.3f}"))
    return ResultTable(
        "The plan of `auto`: its step over that of another plan of the same model on the same bed (geometric means; below 1 it is faster).",
        ("against", "bed", "cases", "predicted", "measured"),
        rows,
    )


def _pair(case: Sequence[Measured], name: str) -> tuple[Measured, Measured] | None:
    """The plan of `auto` and the other one; None if the case lacks one of them."""
    by_name = {made_by: plan for plan in case for made_by in plan.names}
    other = min(case, key=lambda plan: plan.steps.step_ms) if name.startswith("the fastest") else by_name.get(name)
    return (by_name["auto"], other) if other and "auto" in by_name else None


def _huge_pages(plans: Sequence[Measured]) -> ResultTable:
    rows = []
    known = {(*plan.case, plan.row["plan"]): plan for plan in plans if not plan.row["huge_pages"]}
    asked = [plan for plan in plans if plan.row["huge_pages"] and (*plan.case, plan.row["plan"]) in known]
    for bed, group in (*grouped(asked, lambda plan: plan.case[0]), *([("all", asked)] if asked else [])):
        for phase in ("forward kernel", "backward kernel", STEP):
            pairs = [
                (known[*plan.case, plan.row["plan"]].steps.measured(phase), plan.steps.measured(phase))
                for plan in group
            ]
            without, with_them = (np.median(side) for side in zip(*pairs, strict=True))
            ratio = ratio_mean(b / a for a, b in pairs)
            rows.append((bed, phase, len(pairs), f"{without:.2f}", f"{with_them:.2f}", f"{ratio:.2f}"))
    return ResultTable(
        "Huge pages: ranks started with `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`, as for measuring kernels, against ranks without, as in "
        "trainings. Measured ms (medians), and with / without (geometric mean over plans).",
        ("bed", "phase", "plans", "without", "with", "with / without"),
        rows,
    )


def _links(plans: Sequence[Measured]) -> ResultTable:
    rows = []
    for (bed, rate), group in grouped(plans, lambda plan: plan.case[:2]):
        links = group[0].steps.plan.task.topology.links
        assert links is not None
        document = links_to_dict(links)
        for kind, ms in document.pop("modules", {}).items():
            rows.append((bed, rate, "modules", kind.removesuffix("_ms"), f"{ms:.2f}", "–", "–"))
        for collective, classes in document.items():
            for link, speed in classes.items():
                rates = (f"{speed[name] / 1e6:.1f}" if name in speed else "–" for name in ("bandwidth", "alone"))
                rows.append((bed, rate, collective, link, f"{speed['latency_ms']:.2f}", *rates))
    return ResultTable(
        "Links as measured; modules: ms of a step that TorchRec's modules took beside the predicted collectives. MB/s that a device sends, "
        "by the bytes that a direct all-to-all or rings would send; each device has one ring that crosses between hosts. Alone: if only "
        "one device sends, where that is faster by more than the errors.",
        ("bed", "links", "collective", "inside a host or between", "latency ms", "MB/s", "alone"),
        rows,
    )


def grouped(plans: Iterable[Measured], key: Callable[[Measured], Any]) -> list[tuple[Any, list[Measured]]]:
    """Rows by key, in order of their first ones."""
    groups: dict[Any, list[Measured]] = {}
    for plan in plans:
        groups.setdefault(key(plan), []).append(plan)
    return list(groups.items())


def ratio_mean(ratios: Iterable[float]) -> float:
    """Geometric mean of the finite ratios."""
    known = np.array([ratio for ratio in ratios if np.isfinite(ratio)])
    return float(np.exp(np.log(known).mean())) if len(known) else float("nan")


def _spearman(plans: Sequence[Measured]) -> float:
    from scipy.stats import spearmanr

    predicted, measured = [plan.predicted for plan in plans], [plan.steps.step_ms for plan in plans]
    return float(spearmanr(predicted, measured).statistic) if len(plans) > 1 else float("nan")


def _share(value: Any) -> str:
    return f"{value:.1%}"
