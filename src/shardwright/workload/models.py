"""Public recommender models as ready-made tables and tasks."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from shardwright.errors import InvalidInput
from shardwright.task import AccessProfile, Table, Task, Topology

PUBLIC_MODELS = {
    "mlperf-dlrm-dcnv2": "mlperf_dlrm_dcnv2",
    "hugectr-180": "hugectr_180_tables",
    "hugectr-200": "hugectr_200_tables",
    "hugectr-7": "hugectr_7_tables",
}
"""Names of the models, and of their entries in the shipped facts."""

ZIPF = {"mlperf-dlrm-dcnv2": 1.05, "hugectr-180": 1.1, "hugectr-200": 1.1, "hugectr-7": 1.1}
"""Zipf exponent of the accesses. HugeCTR's is published. MLPerf's is an assumption: its ids are Criteo's click logs, whose
ids fall off about like 1 / rank, and nothing more exact is published in text."""

BATCH_SIZE = 65_536
"""Samples per step where none is published."""


def public_model(name: str, *, scale: float = 1.0, zipf: float | None = None) -> tuple[Table, ...]:
    """The tables of a public model.

    Args:
        name: `mlperf-dlrm-dcnv2` (26 tables), `hugectr-180` (177 tables, as its groups
            are published), `hugectr-200` (200 tables) or `hugectr-7` (7 giant ones).
        scale: factor on the rows of every table (a table keeps at least 1).
        zipf: Zipf exponent of the accesses, instead of the model's in `ZIPF`.

    Raises:
        InvalidInput: no model has this name, or scale or zipf breaks a rule.
    """
    facts = _facts(name)
    exponent = ZIPF[name] if zipf is None else zipf
    tables = [
        Table(table_name, rows, dim, float(pooling), access=AccessProfile.zipf(rows, exponent))
        for table_name, rows, pooling, dim in _specifications(facts)
    ]
    return tuple(tables) if scale == 1 else tuple(table.scaled_rows(scale) for table in tables)


def public_task(name: str, topology: Topology, *, scale: float = 1.0, batch_size: int | None = None) -> Task:
    """A public model on a cluster, with its published optimizer and batch size (65,536 where none is published).

    Raises:
        InvalidInput: no model has this name, or an argument breaks a rule.
    """
    facts = _facts(name)
    if batch_size is None:
        batch_size = facts.get("global_batch_size", BATCH_SIZE)
    return Task(public_model(name, scale=scale), topology, batch_size, facts["optimizer"])


def _specifications(facts: dict[str, Any]) -> list[tuple[str, int, float, int]]:
    """Name, rows, lookups per sample and dim of each table; the third table of group 0 is g0_2."""
    if "groups" not in facts:
        return [
            (f"cat_{i}", rows, lookups, facts["dim"])
            for i, (rows, lookups) in enumerate(zip(facts["rows"], facts["lookups"], strict=True))
        ]
    columns = (facts["groups"][key] for key in ("count", "rows", "lookups", "dim"))
    groups = enumerate(zip(*columns, strict=True))
    return [
        (f"g{group}_{i}", rows, lookups, dim) for group, (count, rows, lookups, dim) in groups for i in range(count)
    ]


def _facts(name: str) -> dict[str, Any]:
    if name not in PUBLIC_MODELS:
        raise InvalidInput(f"unknown public model {name!r}; known models are {', '.join(PUBLIC_MODELS)}")
    facts: dict[str, Any] = _all_facts()[PUBLIC_MODELS[name]]
    return facts


@cache
def _all_facts() -> Any:
    return json.loads((files("shardwright.workload") / "data" / "public_models.json").read_text())
