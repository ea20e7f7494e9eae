import re
from dataclasses import replace

import pytest
from experiments.entrants import Entrant, Limits, digest, entrant, model_version, torchrec_version
from experiments.outcomes import NO_PLAN, NO_ROOM, NO_TIME, UNSUPPORTED, planned

from shardwright.integrations.torchrec.rival import TorchRec
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel

MODEL = SimpleCostModel()
TWO = Topology(devices_per_host=2, memory="100 MB")
SMALL = Task([Table(f"t{number}", 1000, 16, 4.0) for number in range(5)], TWO, 256)


def whole_and(rows: int) -> Task:
    """Two devices and one table of so many rows of 256 bytes beside the small ones."""
    return Task([*SMALL.tables, Table("large", rows, 64, 1.0)], TWO, 256)


@pytest.mark.parametrize("name", ["random", "size_lookup", "greedy", "neuroshard", "certified"])
def test_a_plan_has_its_costs(name):
    row, plan = planned(SMALL, entrant(name), model=MODEL)
    assert (row["failure"], row["why"], row["tables"], row["oversize"]) == (None, None, 5, 0)
    assert row["step_ms"] == plan.cost.step_ms
    assert 0 < row["compute_ms"] <= row["embedding_cost_ms"] <= row["step_ms"]
    assert 0 <= row["balance"] <= 1
    assert (row["bound_ms"] is not None) == (name == "certified")
    assert plan.strategy == name


def test_the_seed_is_the_searchs():
    costs = {planned(SMALL, entrant("random"), seed=seed, model=MODEL)[0]["step_ms"] for seed in range(8)}
    assert len(costs) > 1


def test_a_table_that_fits_no_device_is_cut():
    row, _ = planned(whole_and(450_000), entrant("size"), model=MODEL)  # 115 MB
    assert (row["failure"], row["oversize"], row["cut"]) == (None, 1, 1)
    assert planned(SMALL, entrant("size"), model=MODEL)[0]["cut"] == 0


def test_a_table_that_finds_no_room():
    large = [Table(f"large{number}", 220_000, 64, 1.0) for number in range(3)]  # 57 MB each
    row, plan = planned(Task(large, TWO, 256), entrant("size"), model=MODEL)
    assert plan is None
    assert (row["failure"], row["oversize"], row["cut"]) == (NO_ROOM, 0, None)
    assert (row["step_ms"], row["balance"], row["bound_ms"]) == (None, None, None)
    assert "large0" in row["why"]  # of equals the last comes first, as in the papers' code
    assert planned(Task(large, TWO, 256), entrant("certified"), model=MODEL)[0]["failure"] is None


def test_a_task_without_any_plan():
    row, _ = planned(whole_and(2_000_000), entrant("certified"), model=MODEL)
    assert row["failure"] == NO_PLAN


def test_a_strategy_that_cannot_plan_such_tasks():
    tiered = {SMALL.tables[0].name: TableConstraint(sharding_types=("tiered",))}
    row, _ = planned(replace(SMALL, constraints=Constraints(tiered)), entrant("dreamshard"))
    assert row["failure"] == UNSUPPORTED


def test_a_search_that_took_its_time(monkeypatch):
    monkeypatch.setattr(TorchRec, "supports", lambda self, task: None)
    monkeypatch.setattr(TorchRec, "_ask", lambda self, request, timeout_s: {"error": "too slow"})
    row, _ = planned(SMALL, Entrant(TorchRec(), "", 0.0), model=MODEL)
    assert (row["failure"], row["why"]) == (NO_TIME, "too slow")
    row, _ = planned(SMALL, Entrant(TorchRec(), "", 60.0), model=MODEL)
    assert row["failure"] == NO_ROOM


def test_versions_say_what_plans_depend_on(tmp_path):
    limits = Limits(seconds=3.0, torchrec_seconds=7.0, tolerance=0.01)
    certified = entrant("certified", limits)
    assert (certified.version, certified.time_limit) == ("tolerance 0.01, 3 s", 3.0)
    assert certified.strategy.tolerance == 0.01
    assert entrant("torchrec", limits).version == f"{torchrec_version()}, 7 s"
    assert (entrant("size", limits).version, entrant("size", limits).time_limit) == ("ties by size", None)
    bundled, plus = (entrant(name, limits).version for name in ("dreamshard", "dreamshard+"))
    assert plus == f"{bundled}, tolerance 0.01, 3 s"
    own = tmp_path / "own.safetensors"
    own.write_bytes(b"1")
    mine = entrant("dreamshard", limits, policy=own)
    assert mine.version == f"policy {digest(own)}" != bundled
    assert mine.strategy.policy == own
    assert re.fullmatch("published h200 [0-9a-f]{8}", model_version("h200"))
    assert model_version("cpu").startswith("model ")
