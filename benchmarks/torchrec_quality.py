"""Embedding cost of our plans against those of TorchRec's planner, predicted and measured on real kernels.

    python -m benchmarks.torchrec_quality --plan-only                 # TorchRec's planner takes seconds to minutes a task
    python -m benchmarks.torchrec_quality --tasks 20 --devices 4 8    # then measures, on a quiet machine

Tasks are NeuroShard's (T in [2.5 D, 15 D) tables, max dim 128, batch 1,024) from half of the pool, for CPUs; then the public models, scaled
to this machine and, only predicted, in full on H100s, as are the synthetic tasks of --clusters. TorchRec plans each task with pooling
factors ("torchrec") and without, as most users run it ("torchrec, no statistics"). Ours plans with the sharding types that TorchRec offers.
--cache keeps the plans, so a stopped run goes on. Links are not measured: the embedding cost is measured kernels plus predicted links.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import shardwright as sw
from benchmarks import results_table
from benchmarks.measured_tables import model_and_state
from benchmarks.program import Options, options_of
from benchmarks.torchrec_tables import Compared, gains, planning_table
from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.score import scored
from shardwright.errors import InfeasibleTask
from shardwright.integrations.torchrec.models import local_batch_size, modules_for, sharders_for, torchrec_topology
from shardwright.integrations.torchrec.problem import problem_of
from shardwright.integrations.torchrec.rival import TorchRec
from shardwright.measure.measuring import MeasuredPlan, measure_plans
from shardwright.sharding import Plan
from shardwright.task import Task
from shardwright.task.files import task_to_dict
from shardwright.workload import paper_tasks, public_task, split_pool

BATCH_SIZE = 1024
SEED = 29
HEURISTICS = ("size", "dim", "lookup", "size_lookup", "greedy")
OURS = ("certified", "neuroshard", *HEURISTICS)
RIVALS = {"torchrec": {"statistics": True}, "torchrec, no statistics": {"statistics": False}}
HOSTS = {"mlperf-dlrm-dcnv2": 1, "hugectr-180": 1, "hugectr-200": 2, "hugectr-7": 4}
"""Hosts of 8 H100s that hold a public model."""


@dataclass(frozen=True)
class Case:
    """A task to compare on.

    Attributes:
        setting: setting in whose rows the task counts.
        name: unique name.
        task: the task as TorchRec gets it.
        measured: whether its plans can be measured here.
    """

    setting: str
    name: str
    task: Task
    measured: bool = True

    @property
    def ours(self) -> Task:
        """The task with the sharding types that TorchRec's sharders offer its planner."""
        topology = torchrec_topology(self.task.topology)
        offered = problem_of(modules_for(self.task), sharders_for(self.task), topology, local_batch_size(self.task))
        return replace(self.task, constraints=offered.task.constraints)


def main(arguments: Sequence[str] | None = None) -> None:
    logging.disable(logging.WARNING)
    options = parsed(arguments)
    compared = [plan for case in cases(options) for plan in plans_of(case, options)]
    if options.plan_only:
        print(f"{len(compared)} plans in {options.cache}", file=sys.stderr)
        return
    to_measure = [own for own in compared if own.measurable]
    plans = [own.plan for own in to_measure]
    times = measure_plans(plans, rounds=options.rounds, progress=say_progress) if plans else []
    measured = dict(zip((own.key for own in to_measure), times, strict=True))
    write_page(compared, measured, options, results_table.command_of("torchrec_quality", arguments))


def parsed(arguments: Sequence[str] | None) -> Options:
    return options_of(
        __doc__, arguments, tasks=(20, "tasks of each size"), devices=([4, 8], "", {"nargs": "*"}),
        large_tasks=(0, "tasks of each size of --large"), large=([16, 32, 64], "", {"nargs": "*"}),
        presets=(False, "the public models too"),
        clusters=([], "synthetic tasks on so many hosts of 8 H100s", {"metavar": "HOSTS", "nargs": "*", "type": int}),
        cluster_tasks=(8, "tasks of each size of --clusters"), ours=(list(OURS), "strategies of ours", OURS), rounds=5,
        time_limit=(20.0, "seconds a search of ours"), torchrec_time_limit=(900.0, "seconds, then its best plan so far counts"),
        cache=Path("out/torchrec_quality"), page=("torchrec_quality", "name of the page"),
        plan_only=(False, "plan the tasks that the cache lacks, and measure nothing"),
    )  # fmt: skip


def cases(options: Options) -> Iterator[Case]:
    """Yield all tasks, smallest settings first."""
    _, pool = split_pool("dlrm-2021", 0.5)
    sizes = [(devices, options.tasks) for devices in options.devices]
    if options.large_tasks:
        sizes += [(devices, options.large_tasks) for devices in options.large]
    for devices, count in sizes:
        tables = (5 * devices // 2, 15 * devices) if devices <= 8 else (6 * devices, 6 * devices + 1)
        tasks = paper_tasks(
            count, devices=devices, tables=tables, pool=pool, seed=SEED, batch_size=BATCH_SIZE, device="cpu"
        )
        for number, task in enumerate(tasks):
            yield Case(f"{devices} devices", f"{devices}-{number}", task)
    for hosts in options.clusters:
        cluster, tables = sw.Topology.preset("h100-8", hosts=hosts), (20 * hosts.bit_length(), 40 * hosts.bit_length())
        for number, task in enumerate(
            paper_tasks(options.cluster_tasks, devices=8, tables=tables, pool=pool, seed=SEED, device="h100")
        ):
            on_cluster = replace(task, topology=cluster, batch_size=2048 * cluster.devices)
            yield Case(f"{cluster.devices} H100s", f"{cluster.devices}-h100-{number}", on_cluster, measured=False)
    for name in HOSTS if options.presets else ():
        small = sw.Topology(devices_per_host=4, memory="4 GB")
        scale = 0.001 if name == "hugectr-7" else 0.02
        yield Case("public models on CPUs", f"{name}-cpu", public_task(name, small, scale=scale, batch_size=BATCH_SIZE))
        cluster = sw.Topology.preset("h100-8", hosts=HOSTS[name])
        yield Case("public models on H100s", f"{name}-h100", public_task(name, cluster), measured=False)


def plans_of(case: Case, options: Options) -> list[Compared]:
    """Return the plans of all planners, from the cache if it has them."""
    result = [kept_plan(case, name, "", options) for name in options.ours]
    result += [kept_plan(case, name, "torchrec", options) for name in RIVALS]
    return [plan for plan in result if plan is not None]


def kept_plan(case: Case, planner: str, rival: str, options: Options) -> Compared | None:
    """Return one planner's plan from the cache, else plan anew; None if it found no plan, which the cache keeps too."""
    options.cache.mkdir(parents=True, exist_ok=True)
    task = case.task if rival else case.ours
    limit = options.torchrec_time_limit if rival else options.time_limit
    digest = hashlib.sha256(json.dumps([task_to_dict(task), limit], sort_keys=True).encode()).hexdigest()[:8]
    file = options.cache / f"{case.name}-{planner.replace(', ', '-').replace(' ', '-')}-{digest}.json"
    failed = file.with_suffix(".failed")
    if failed.exists():
        return None
    if not file.exists():
        try:
            plan = made_plan(task, planner, options)
        except InfeasibleTask as error:
            failed.write_text(str(error))
            return None
        plan.save(file)
        print(f"{case.name} {planner}: {plan.search_s:.1f} s", file=sys.stderr, flush=True)
    plan = scored(Plan.load(file), resolve_cost_model(None, task))
    return Compared(case.setting, case.name, planner, plan, case.measured)


def made_plan(task: Task, planner: str, options: Options) -> Plan:
    """Plan by TorchRec, in a separate process so that nothing else affects its time, or by a strategy of ours."""
    if planner in RIVALS:
        return sw.plan(task, strategy=TorchRec(time_limit_s=options.torchrec_time_limit, **RIVALS[planner]))
    return sw.plan(task, strategy=planner, time_limit=options.time_limit)


def say_progress(done: int, wanted: int, detail: str) -> None:
    if done % 500 == 0 or done == wanted:
        print(f"{done}/{wanted} measured", file=sys.stderr, flush=True)


def write_page(
    compared: list[Compared], measured: dict[tuple[str, str], MeasuredPlan], options: Options, command: str
) -> None:
    how = (
        f"Kernels were measured in {options.rounds} interleaved rounds on fresh batches; links are predicted. {_state(compared, measured)}"
        if measured
        else "Nothing was measured: all costs are predicted."
    )
    caption = (
        "Embedding cost: the maximum over devices of kernels and links. Ours divided by the rival's on the same task, geometric mean "
        f"over the tasks that both placed, with a 95% bootstrap interval (under 1 is better; 1 − ratio is the gain). {how}"
    )
    if set(HEURISTICS) & set(options.ours):
        caption += " Best heuristic: by predicted cost, task by task."
    times = "Seconds a plan takes: the search, without loading torch; for TorchRec its whole process, which takes some seconds to load."
    tables = [(caption, *gains(compared, measured, RIVALS, HEURISTICS)), (times, *planning_table(compared))]
    results_table.write_results(options.page, "Plans against TorchRec's planner", tables, command)


def _state(compared: list[Compared], measured: dict[tuple[str, str], MeasuredPlan]) -> str:
    """Describe the cost model of the measured plans, and the control sets now against when it was learned."""
    first = next((own for own in compared if own.key in measured), None)
    if first is None:
        return ""
    return model_and_state(resolve_cost_model(None, first.plan.task), measured[first.key].controls)


if __name__ == "__main__":
    main()
