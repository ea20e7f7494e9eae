"""`shardwright scale`: plan one task on several clusters, and show step, throughput, memory and cost beside the proven bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import RenderableType

from shardwright.cli.checks import make_folder
from shardwright.cli.clusters import clusters_of
from shardwright.cli.options import AsJson, ModelFile, OnRuntime, Seed, TaskFile, option
from shardwright.cli.output import MISSING, emit, ms, note, percent, progress, saved, table
from shardwright.errors import InfeasibleTask, InvalidInput, some_of
from shardwright.task.quantities import format_bytes, parse_count

if TYPE_CHECKING:
    from shardwright.cli.documents import planning
    from shardwright.questions.scale import ClusterSize, Scaling
    from shardwright.sharding.runtimes import RunsOn
    from shardwright.task import Task, Topology

_MOST_SIZES, _IN_ALL_S = 64, 16.0
_COLUMNS = ("cluster", "batch", "step", "bound", "M samples/s", "at most", "efficiency", "memory")
_COSTS = ("cluster", "$/billion samples", "at least")


def run(
    *,
    task: TaskFile,
    hosts: Annotated[
        str, typer.Option("--hosts", metavar="N,N,…", help="Numbers of hosts to plan for.")
    ] = "1,2,4,8,16",
    devices: Annotated[
        str | None,
        option(
            "--devices",
            metavar="PRESET,…",
            text="Types of hosts by preset, such as h100-8,h200-8; by default the task's own.",
        ),
    ] = None,
    batch: Annotated[
        str | None, option("--batch", metavar="N", text="Samples of a step over all devices; by default the task's.")
    ] = None,
    batch_per_device: Annotated[
        str | None,
        option("--batch-per-device", metavar="N", text="Samples of a step on each device, instead of --batch."),
    ] = None,
    dense_ms: Annotated[float, typer.Option("--dense-ms", help="Time of a step's dense layers.")] = 0.0,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Embeddings and dense layers run at the same time; the longer counts.")
    ] = False,
    price: Annotated[
        list[str] | None,
        option(
            "--price",
            metavar="DEVICE=PRICE",
            text="Price of a device for an hour, as in h100=2.5; may be given several times.",
        ),
    ] = None,
    output: Annotated[
        Path | None, option("--output", "-o", metavar="FOLDER", text="Save the plans here, for 'shardwright report'.")
    ] = None,
    model: ModelFile = None,
    seed: Seed = 0,
    time_limit: Annotated[
        float | None,
        option("--time-limit", metavar="SECONDS", text="Per search; by default at most 1, and 16 for all together."),
    ] = None,
    runs_on: OnRuntime = "auto",
    as_json: AsJson = False,
) -> None:
    """Plan a task on several clusters: how many devices does it need, and of what type?

    'at most' and 'at least' follow from the proven bound of each cluster. The lines below the table name the smallest
    cluster whose plan no larger one of them can beat, in time or in price. With the task's own batch, more devices share the same samples.

    Example:
        shardwright scale task.yaml --hosts 1,2,4 --devices h100-8,h200-8 --price h100=2.5 --price h200=3.5
    """
    from shardwright.questions.scale import DenseWork, scale
    from shardwright.schema import Place
    from shardwright.task import Task

    if batch is not None and batch_per_device is not None:
        raise InvalidInput("--batch and --batch-per-device exclude each other; give one")
    prices, dense = _prices(price or []), DenseWork(dense_ms, overlap)
    placed = Task.load(task)
    if batch is not None:
        with Place("--batch").naming():
            placed = replace(placed, batch_size=parse_count(batch, "batch_size"))
    topologies = _topologies(placed, hosts, devices)
    _note_measured(topologies)
    if unused := prices.keys() - {topology.device for topology in topologies}:
        note(f"warning: no cluster has devices of {some_of(sorted(unused))}, so their prices count nowhere")
    if output is not None:
        make_folder(output, map(_file_name, topologies), [task, model])
    with progress("planning", len(topologies)) as report:
        scaling = scale(
            placed,
            topologies,
            batch_per_device=None if batch_per_device is None else parse_count(batch_per_device, "--batch-per-device"),
            dense=dense,
            prices=prices,
            cost_model=model,
            seed=seed,
            time_limit=min(1.0, _IN_ALL_S / len(topologies)) if time_limit is None else time_limit,
            runs_on=cast("RunsOn", runs_on),
            progress=report,
        )
    files = [_save(size, output) for size in scaling.planned] if output is not None else []
    document = _document(task, scaling)
    emit(document, *_views(scaling, document), *(saved(file) for file in files), as_json=as_json)
    if not scaling.planned:
        raise InfeasibleTask(
            f"{task}: no plan on any of {len(topologies)} clusters; name larger ones with --hosts or --devices"
        )


def _topologies(task: Task, hosts: str, devices: str | None) -> list[Topology]:
    counts = {parse_count(text, "--hosts") for text in hosts.split(",")}
    named = clusters_of(task.topology, sorted(counts), devices)
    if len(named) > _MOST_SIZES:
        raise InvalidInput(f"--hosts and --devices name {len(named)} clusters, {_MOST_SIZES} are allowed; name fewer")
    return named


def _note_measured(topologies: list[Topology]) -> None:
    """Name the clusters whose links were measured: by links of some clusters only, clusters would not compare."""
    from shardwright.modelling.links import cached_links

    names = [cluster_name(topology) for topology in topologies if topology.links is None and cached_links(topology)]
    if names:
        note(
            f"links of {', '.join(names)} were measured, but every cluster is priced by the topology's own, so that clusters compare; "
            "to price all by measured ones, state links: FILE in the topology"
        )


def _prices(given: list[str]) -> dict[str, float]:
    prices = {}
    for text in given:
        device, _, value = text.partition("=")
        try:
            prices[device] = float(value)
        except ValueError:
            raise InvalidInput(f"--price: {text!r} must be a device type and a number, as in h100=2.5") from None
    return prices


def _file_name(topology: Topology) -> str:
    return f"{topology.hosts}x{topology.devices_per_host}-{topology.device}.json"


def _save(size: ClusterSize, folder: Path) -> Path:
    assert size.plan is not None
    file = folder / _file_name(size.topology)
    size.plan.save(file)
    return file


def cluster_name(topology: Topology) -> str:
    """A cluster in words, such as "4 × 8 h100"."""
    return f"{topology.hosts} × {topology.devices_per_host} {topology.device}"


def _views(scaling: Scaling, document: planning.Scale) -> list[RenderableType]:
    from shardwright.sharding import BOUND_SCOPES

    named = [(cluster_name(size.topology), row) for size, row in zip(scaling.sizes, document["sizes"], strict=True)]
    priced = any(size.cost is not None for size in scaling.sizes)
    views: list[RenderableType] = [table(document["task"], _COLUMNS, [_row(name, size) for name, size in named])]
    views += [table("costs", _COSTS, [_costs(name, size) for name, size in named])] if priced else []
    views += [f"{cluster_name(size.topology)}: {size.why_not}" for size in scaling.sizes if size.plan is None]
    for size, what in ((scaling.fast_enough, "faster"), (scaling.cheap_enough if priced else None, "cheaper")):
        if size is not None:
            name = cluster_name(size.topology)
            views.append(f"by proof, no plan on a larger one of these clusters is {what} than that on {name}")
    scopes: dict[str, list[str]] = {}
    for size in scaling.sizes:
        if size.bound_scope is not None:
            scopes.setdefault(size.bound_scope, []).append(cluster_name(size.topology))
    for scope, names in scopes.items():
        of = f"the bounds of {', '.join(names)} hold" if len(scopes) > 1 else "the bounds hold"
        views.append(f"{of} {BOUND_SCOPES[scope]}")
    return views


def _row(name: str, size: planning.Size) -> list[str]:
    return [
        name,
        str(size["batch_size"]),
        ms(size["step_ms"]),
        ms(size["bound_ms"]),
        _times(1e-6, size["samples_per_second"]),
        _times(1e-6, size["most_samples_per_second"]),
        percent(size["efficiency"]),
        MISSING if size["memory_bytes"] is None else format_bytes(size["memory_bytes"]),
    ]


def _costs(name: str, size: planning.Size) -> list[str]:
    return [name, _times(1e3, size["cost_per_million"]), _times(1e3, size["least_cost_per_million"])]


def _times(factor: float, value: float | None) -> str:
    return MISSING if value is None else f"{factor * value:.4g}"


def _document(file: Path, scaling: Scaling) -> planning.Scale:
    fast, cheap = scaling.fast_enough, scaling.cheap_enough
    return {
        "task": str(file),
        "sizes": [_size(scaling, size) for size in scaling.sizes],
        "no_faster_than_devices": fast.topology.devices if fast else None,
        "no_cheaper_than_devices": cheap.topology.devices if cheap else None,
    }


def _size(scaling: Scaling, size: ClusterSize) -> planning.Size:
    topology, plan = size.topology, size.plan
    return {
        "hosts": topology.hosts,
        "devices_per_host": topology.devices_per_host,
        "device": topology.device,
        "batch_size": size.batch_size,
        "why_no_plan": size.why_not or None,
        "step_ms": size.step_ms if plan else None,
        "bound_ms": size.bound_ms,
        "bound_scope": size.bound_scope,
        "samples_per_second": size.throughput if plan else None,
        "most_samples_per_second": size.most_throughput if size.bound_ms is not None else None,
        "efficiency": scaling.efficiency(size),
        "memory_bytes": int(plan.memory.total.max()) if plan else None,
        "cost_per_million": size.cost,
        "least_cost_per_million": size.least_cost,
    }
