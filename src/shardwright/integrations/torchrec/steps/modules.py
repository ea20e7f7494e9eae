"""Measure the time of modules in a step besides collectives, on the ranks that have just measured the links of a cluster.

An `EmbeddingBagCollection`, an `EmbeddingCollection` and `shardwright.runtime`, of small tables, train whole steps. The time of a module is
that of Python and of sorting and copying ids and rows, beyond the kernels, which are measured alone. TorchRec's modules compute on CPUs in
one thread while nothing travels, so the CPU time of this thread is the time of module and kernels. On GPUs, and for the runtime, which
computes while rows travel, it is the step beyond the predicted collectives, at most the CPU time: over slow links that is a small
difference of two long times. If ranks share cores, a module's time holds what they lose by that.

This module is also the program of the ranks: it answers requests for rungs of the ladder of links, and for the steps of a module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from statistics import median
from time import perf_counter, thread_time
from typing import Any

from shardwright.cost.modules import without_modules
from shardwright.cost.score import score
from shardwright.cost.synchronisation import NoKernels
from shardwright.measure.collectives import rank
from shardwright.measure.collectives.rank import Member, RunPolicy
from shardwright.measure.device_work import device_works
from shardwright.measure.measuring import measure_works
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task.link_files import MeasuredLinks
from shardwright.task.links import COLLECTIVES, Collective, Links, ModuleTimes
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Exchange, Topology

KINDS = ("pooled", "sequence", "shared")
"""Modules: TorchRec's of pooled and of sequence tables, and that of `shardwright.runtime`, of pooled tables."""
_ROUNDS, _WARM_UP, _STEPS = 2, 4, 8
_SAMPLES = {"cpu": 512}  # of a rank, by device type
_MORE_SAMPLES = 4096
_COMPUTED_S = 0.1
_FEWEST_TABLES, _ROWS, _POOLING = 8, 10_000, 2.0
# TorchRec calls one kernel for all dims of a device, `shardwright.runtime` one for each: its devices hold tables of three.
_DIMS = {"pooled": (16,), "sequence": (16,), "shared": (16, 32, 64)}


def available() -> bool:
    """Whether TorchRec is installed."""
    return find_spec("torchrec") is not None


@dataclass(frozen=True)
class ModuleProbe:
    """The probe that `calibration.links.calibrate_links` takes.

    Attributes:
        seconds: about how long it takes, the import of TorchRec on the ranks included.
        program: arguments of Python that run a rank of this machine.
        collectives: the collectives whose rungs its ranks measure.
        answer: serves a request on a rank.
    """

    seconds: float = 38.0
    program: tuple[str, ...] = ("-m", "shardwright.integrations.torchrec.steps.modules")
    collectives: tuple[Collective, ...] = COLLECTIVES

    def answer(self, member: Member, request: dict[str, Any], policy: RunPolicy) -> dict[str, Any]:
        """Train the steps of a module, or measure a rung, on this rank with all others at the same time; return the reply of rank 0."""
        if "module" not in request and request.get("rung", {}).get("collective") != "exchange":
            return rank.answer(member, request, policy)
        from shardwright.integrations.torchrec.steps.rank import Rounds, quiet, run_rounds
        from shardwright.integrations.torchrec.steps.shared import exchange_call

        if "rung" in request:
            return rank.measure_rung(member, request, exchange_call)
        quiet()
        wanted = Rounds(rounds=_ROUNDS, warm_up=_WARM_UP, steps=_STEPS, profiled=1)
        (rounds,) = run_rounds([_plan(request)], wanted, member)
        step_ms, cpu_ms = (
            median(
                max(times)
                for ranks in rounds
                for times in zip(*(getattr(report, name) for report in ranks), strict=True)
            )
            for name in ("step_ms", "cpu_ms")
        )
        return {"step_ms": step_ms, "cpu_ms": cpu_ms * _slowdown(member)}

    def with_modules(self, ask: Callable[[dict[str, Any], str], dict[str, Any]], links: MeasuredLinks) -> MeasuredLinks:
        """The links with the times of the modules.

        Args:
            ask: has all ranks serve a request, and returns the reply of rank 0.
            links: links that were measured on these ranks.
        """
        cluster, times = links.cluster, {}
        shape = {"device": cluster.device, "hosts": cluster.hosts, "near": cluster.devices_per_host}
        requests = [{"module": kind, **shape} for kind in KINDS]
        plans = list(map(_plan, requests))
        for request, plan, kernels_ms in zip(requests, plans, _kernels_ms(plans), strict=True):
            reply = ask(request, f"for steps of {request['module']} tables")
            computed_ms = float(reply["cpu_ms"])
            if cluster.device != "cpu" or request["module"] == "shared":
                computed_ms = min(computed_ms, float(reply["step_ms"]) - _collectives_ms(plan, links.links))
            times[f"{request['module']}_ms"] = float(f"{max(0.0, computed_ms - kernels_ms):.4g}")
        return replace(links, links=replace(links.links, modules=ModuleTimes(**times)))


def _slowdown(member: Member) -> float:
    """How many times longer the ranks compute if all of them do, as on machines with fewer cores than ranks."""
    from shardwright.integrations.torchrec.steps.phases import start_together

    start_together(member)
    started, computed = perf_counter(), thread_time()
    while thread_time() - computed < _COMPUTED_S:
        pass
    own = (perf_counter() - started) / (thread_time() - computed)
    return median(slowdown for (slowdown,) in member.gather([own]))


def _plan(request: Mapping[str, Any]) -> Plan:
    """Small tables, whole, on the devices in turn; each device has a table of every dim."""
    kind, device = request["module"], request["device"]
    topology = Topology(request["hosts"], request["near"], device, "1 GB", "10 GB/s", "10 GB/s", 0.0, 0.0)
    dims = _DIMS[kind]
    tables = [
        Table(
            f"{kind}_{number}", _ROWS, dims[number // topology.devices % len(dims)], _POOLING, pooled=kind != "sequence"
        )
        for number in range(max(_FEWEST_TABLES, len(dims) * topology.devices))
    ]
    exchange = Exchange(collectives="shared" if kind == "shared" else "by_type")
    task = Task(tables, topology, _SAMPLES.get(device, _MORE_SAMPLES) * topology.devices, exchange=exchange)
    return Plan(task, [Shard.whole(table, number % topology.devices) for number, table in enumerate(tables)])


def _kernels_ms(plans: Sequence[Plan]) -> list[float]:
    """Ms of the kernels of each plan's first device, forward and backward, measured on this machine as those of cost models."""
    works = [device_works(plan, seed=0)[0] for plan in plans]
    measured = measure_works(works, rounds=_ROUNDS, device=plans[0].task.topology.compute_device)
    return [sum(measured.time(work)) for work in works]


def _collectives_ms(plan: Plan, links: Links) -> float:
    """Predicted ms of the plan's collectives over measured links."""
    task = without_modules(replace(plan.task, topology=replace(plan.task.topology, links=links)))
    return score(task, plan.shards, NoKernels()).step_ms


if __name__ == "__main__":
    rank.main(ModuleProbe().answer)
