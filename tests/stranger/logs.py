"""Logs of the kinds that strangers bring: Criteo's, JSON lines, Parquet with columns that hold no ids."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 4_000


def write_logs(folder: Path) -> None:
    """Write `train.txt` (as Criteo's, without header), `clicks.jsonl` and `views.parquet`."""
    rng = np.random.default_rng(0)
    (folder / "train.txt").write_text("".join(_criteo(rng)))
    (folder / "clicks.jsonl").write_text("".join(_clicks(rng)))
    pq.write_table(_views(rng), folder / "views.parquet")


def _criteo(rng: np.random.Generator) -> list[str]:
    words = [[f"{word:08x}" for word in rng.integers(0, 2**32, size)] for size in rng.integers(5, 3_000, 26)]
    lines = []
    for _ in range(ROWS):
        integers = ["" if rng.random() < 0.2 else str(int(rng.lognormal(3, 2)) - (column == 1)) for column in range(13)]
        categories = ["" if rng.random() < 0.1 else of[rng.integers(len(of))] for of in words]
        lines.append("\t".join([str(rng.integers(2)), *integers, *categories]) + "\n")
    return lines


def _clicks(rng: np.random.Generator) -> list[str]:
    lines = []
    for _ in range(ROWS):
        sample = {"user": int(rng.integers(900)), "seen": rng.integers(0, 500, rng.integers(0, 9)).tolist()}
        if rng.random() < 0.7:
            sample |= {"page": int(rng.integers(-(2**62), 2**62)), "device": {"os": "a"}}
        lines.append(json.dumps(sample) + "\n")
    return lines


def _views(rng: np.random.Generator) -> pa.Table:
    count = {"size": ROWS}
    lists = [rng.integers(0, 5_000, length) for length in rng.integers(0, 20, ROWS)]
    return pa.table(
        {
            "user": rng.integers(0, 2_000, **count),
            "item": pa.array([str(each) for each in rng.integers(0, 400, **count)]).dictionary_encode(),
            "history": pa.array(lists, pa.list_(pa.int64())),
            "hash": rng.integers(-(2**63), 2**63, dtype=np.int64, **count),
            "price": rng.random(ROWS),
            "when": pa.array(rng.integers(0, 10**9, **count), pa.timestamp("s")),
            "where": [{"city": 3}] * ROWS,
            "deep": [[[1], [2, 3]]] * ROWS,
            "bought": rng.random(ROWS) < 0.1,
        }
    )
