"""The plan under review, read from any of its formats, and the better plan, written back in the same one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.cli.clusters import task_on_cluster
from shardwright.errors import InvalidInput

if TYPE_CHECKING:
    from shardwright.sharding import Plan
    from shardwright.sharding.torchrec_logs import LoggedPlan
    from shardwright.task import Exchange

_LOGS = (".log", ".txt", ".out", ".err")
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}


def read_log(path: Path, task: Path | None, settings: dict[str, Any], which: int | None) -> LoggedPlan | None:
    """Read a plan out of a log of TorchRec's planner; None if the file is none. The settings replace a task file."""
    from shardwright.files import is_document, read_bytes
    from shardwright.sharding.stats_table import decoded, holds_stats, read_stats
    from shardwright.sharding.torchrec_logs import plan_of_stats

    content = read_bytes(path, "plan file or log")
    for start, command in _COMPRESSED.items():
        if content.startswith(start):
            raise InvalidInput(
                f"{path}: is compressed, must be a plan file or a log as text; decompress it with {command}"
            )
    text = decoded(content)
    if is_document(path) or not (holds_stats(text) or path.suffix.lower() in _LOGS):
        return None
    stated = [name for name, value in settings.items() if value is not None]
    if task is not None and stated:
        raise InvalidInput(f"{task}: a task file has its own topology and exchange; leave {', '.join(stated)} out")
    logged = read_stats(text, str(path))
    if (which is None and len(logged) > 1) or (which is not None and which > len(logged)):
        lines = ", ".join(str(stats.line) for stats in logged)
        raise InvalidInput(
            f"{path}: holds {len(logged)} plans, which begin in lines {lines}; choose one of them with --which, from 1 to {len(logged)}"
        )
    loaded = task_on_cluster(task) if task is not None else None
    topology, exchange = settings["--topology"], _exchange(settings["--pipeline"], settings["--dense-ms"])
    return plan_of_stats(logged[(which or 1) - 1], str(path), task=loaded, topology=topology, exchange=exchange)


def _exchange(pipeline: Any, dense_ms: float | None) -> Exchange:
    """The exchange of a log's job.

    Raises:
        InvalidInput: the pipeline is unknown, or the dense layers hide nothing, since there is none.
    """
    from shardwright.task import Exchange

    exchange = Exchange(pipeline=pipeline or "none", dense_ms=dense_ms or 0.0)
    if dense_ms and exchange.batches == 1:
        raise InvalidInput(
            "--dense-ms: ids travel behind dense layers only in a pipeline; add --pipeline sparse_dist, or state under dense_ms in the "
            "file of --save-task which layers hide values or gradients"
        )
    return exchange


def read_plan(path: Path, task: Path | None) -> tuple[Plan, dict[str, Any] | None]:
    """Read a plan; also return the file's content if it is a plan of TorchRec, else None."""
    from shardwright.files import parse_document
    from shardwright.sharding import Plan
    from shardwright.sharding.torchrec_files import is_sharding_plan, plan_from_sharding_plan

    document = parse_document(path, "plan file")
    if not isinstance(document, dict):
        raise InvalidInput(
            f"{path}: is neither a plan nor a log with planner statistics of TorchRec; name a file of one of them"
        )
    if not is_sharding_plan(document):
        if task is not None:
            raise InvalidInput(f"{path}: a plan file holds its own task; leave --task out")
        return Plan.load(path), None
    if task is None:
        raise InvalidInput(
            f"{path}: a sharding plan of TorchRec holds neither lookups nor memory; name its task with --task"
        )
    return plan_from_sharding_plan(document, task_on_cluster(task), str(path)), document


def save_better(better: Plan, output: Path, document: dict[str, Any] | None, source: Path) -> None:
    """Write the better plan: as TorchRec saves it if the reviewed one is a plan of TorchRec, else as a plan file."""
    from shardwright.files import write_atomically
    from shardwright.sharding.torchrec_files import sharding_plan_from_plan

    if document is None:
        better.save(output)
    else:
        write_atomically(output, json.dumps(sharding_plan_from_plan(better, document, str(source)), indent=1) + "\n")
