"""Small valid files of every kind, made once, for cases to use as they are or damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwright.task import Task

KINDS: dict[str, tuple[str, ...]] = {
    "task": ("task.yaml", "task.json", "hosts.yaml", "ranked.yaml"),
    "ranked": ("ranked.yaml",),
    "plan": ("plan.json", "plan.yaml", "hosts.json", "tiered.json"),
    "ranks": ("ranks.safetensors",),
    "model": ("model.safetensors", "neuroshard.safetensors", "links.safetensors"),
    "policy": ("dreamshard.safetensors", "autoshard.safetensors"),
    "dreamshard": ("dreamshard.state",),
    "autoshard": ("autoshard.state",),
    "store": ("samples", "samples.parquet", "collectives"),
    "tasks": ("train.yaml", "files.yaml"),
    "log": ("log.parquet", "log.csv", "log.tsv", "events.txt", "lists.parquet"),
    "measured": ("measured.json",),
    "sharding": ("sharding.json",),
    "tables": ("tables.yaml",),
}
"""File names by kind; a sample store is a folder."""

COMPANIONS = {"tiered.json": "tiered.ranks.safetensors", "ranked.yaml": "tables.yaml", "files.yaml": "task.yaml"}
"""Files that name another, and which it is: it has to lie beside."""

SHORT = {
    "dreamshard": (
        "--option==preset=published", "--iterations==1",
        *(f"--option=={name}=2" for name in ("cost_updates", "collected", "explored", "policy_updates")),
    ),
    "autoshard": ("--rounds==1", *(f"--option=={text}" for text in ("tasks=2", "episodes=2", "lag=1"))),
}  # fmt: skip
"""Options of a training that takes a moment, as parts of a command line of `cases`."""


def make(folder: Path) -> None:
    """Fill an empty folder. Runs in a process of its own, since it starts threads."""
    from shardwright.cost import save_model
    from shardwright.testing.tasks import constrained_task, task_of
    from tests.unit.cli.models import linear_model

    constrained_task().save(folder / "task.yaml")
    task_of(9, 4).save(folder / "task.json")
    task_of(8, 2, hosts=2).save(folder / "hosts.yaml")
    save_model(linear_model(), folder / "model.safetensors")
    _logs(folder)
    _stores(folder)
    _command(folder, "profile log.parquet -o tables.yaml --rank-maps ranks.safetensors --sequence history")
    _ranked(folder)
    plans = (("task.yaml", "plan.json"), ("task.json", "plan.yaml"), ("hosts.yaml", "hosts.json"))
    for task, plan in plans:
        _command(folder, f"plan {task} --strategy certified --time-limit 0.5 -o {plan}")
    _command(folder, "plan ranked.yaml --strategy two_tiers --rank-maps ranks.safetensors -o tiered.json")
    _command(folder, "train samples -o neuroshard.safetensors --network neuroshard --epochs 1")
    _command(folder, "train samples collectives -o links.safetensors --epochs 1")
    (folder / "files.yaml").write_text("groups: [{file: task.yaml}]\n")
    (folder / "train.yaml").write_text(
        "groups:\n  - {count: 2, tables: [3, 6], devices: 2, device: cpu, memory: 1 GB, sharding_types: [table_wise]}\n"
    )
    for strategy, options in SHORT.items():
        line = f"learn {strategy} --tasks train.yaml -o {strategy}.safetensors --checkpoint {strategy}.state"
        _command(folder, line, *(option.replace("==", "=") for option in options))
    _command(folder, "verify hosts.json --rounds 1 --backend embedding_bag --json", out="measured.json")
    (folder / "sharding.json").write_text(json.dumps(_sharding_plan(task_of(9, 4))))


def _sharding_plan(task: Task) -> dict[str, Any]:
    """Whole tables, dealt out to the ranks, as TorchRec's plans are saved."""
    tables = {
        table.name: {
            "sharding_type": "table_wise", "compute_kernel": "fused",
            "shards": [{"offsets": [0, 0], "sizes": [table.rows, table.dim], "placement": f"rank:{index % task.topology.devices}/cpu"}],
        }
        for index, table in enumerate(task.tables)
    }  # fmt: skip
    return {"format": 1, "sharding_plan": {"sparse": tables}}


def _command(folder: Path, line: str, *more: str, out: str | None = None) -> None:
    """Run a command line that must succeed."""
    from contextlib import chdir, redirect_stdout

    from shardwright.cli.main import main

    with chdir(folder), Path(out or "/dev/null").open("w", encoding="utf-8") as file, redirect_stdout(file):
        code = main([*line.split(), *more])
    if code:
        raise RuntimeError(f"shardwright {line}: exit {code}")


def _ranked(folder: Path) -> None:
    text = "batch_size: 512\ntables: {file: tables.yaml}\ntopology: {hosts: 2, devices_per_host: 2, device: cpu, memory: 8 MB}\n"
    (folder / "ranked.yaml").write_text(text)


def _logs(folder: Path) -> None:
    import numpy as np
    import polars as pl

    rng = np.random.default_rng(0)
    columns = {"user": rng.integers(0, 500, 2000), "item": rng.zipf(1.4, 2000) % 300}
    log = pl.DataFrame(columns).with_columns(name=pl.Series([f"n{i % 40}" for i in range(2000)]))
    history = [rng.integers(0, 200, size).tolist() for size in rng.integers(0, 6, 2000)]
    log.with_columns(history=pl.Series(history)).write_parquet(folder / "log.parquet", row_group_size=700)
    log.with_columns(tags=pl.Series([["a", None, "b"][: i % 4] for i in range(2000)])).write_parquet(
        folder / "lists.parquet"
    )
    log.write_csv(folder / "log.csv")
    log.write_csv(folder / "log.tsv", separator="\t")
    (folder / "events.txt").write_text("\n".join(f"{i % 70} {i % 31}" for i in range(1500)))


def _stores(folder: Path) -> None:
    from shardwright.hardware import MACHINE
    from shardwright.measure.samples import export_parquet
    from shardwright.measure.store import SampleStore
    from tests.unit.cli.stores import HARDWARE, write_store
    from tests.unit.modelling.made_collectives import rows

    write_store(folder / "samples", samples=60)
    export_parquet([folder / "samples"], folder / "samples.parquet")
    with SampleStore(folder / "collectives", HARDWARE | {"backend": "gloo"}, MACHINE) as store:
        for row in rows(60):
            store.add_collective("made", row["sample"], row["repeat"], row)
