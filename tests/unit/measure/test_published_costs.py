"""The measured costs in data/costs can be read, name their hardware, and stay small."""

import re
from pathlib import Path

import pyarrow.compute as pc
import pytest

from shardwright.cost.files import device_type
from shardwright.measure.samples import read_parquet

FOLDER = Path(__file__).parents[3] / "data" / "costs"
FILES = sorted(FOLDER.glob("*/*.parquet"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_file_of_costs(path):
    hardware, table = read_parquet(path)
    numbers = re.findall(r"(?:family|model) (\d+)", hardware["processor"])
    on_gpu = hardware["device_kind"] == "cuda"
    assert path.parent.name == device_type(hardware) if on_gpu else path.parent.name.endswith("-".join(numbers))
    assert hardware["backend"] == "fbgemm"
    assert set(table["kind"].unique().to_pylist()) <= {"random", "policy", "neighbour", "pair", "task"}
    assert pc.min(table["forward_ms"]).as_py() > 0
    assert pc.min(table["backward_ms"]).as_py() > 0


def test_all_files_together_are_small():
    assert FILES
    assert sum(path.stat().st_size for path in FILES) <= 10e6
