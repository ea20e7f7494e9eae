"""`examples/run_torchrec`: plans trained by real TorchRec processes, and what is said when a rank dies or hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import shardwright as sw
from shardwright.errors import InvalidPlan, MeasurementFailed, MissingDependency
from shardwright.sharding import Plan, Shard
from shardwright.task import Table, Task, Topology

pytest.importorskip("torchrec", reason="needs TorchRec")

from examples.run_torchrec.__main__ import main
from examples.run_torchrec.phases import PHASES
from examples.run_torchrec.run import RunOptions, run_plan
from examples.run_torchrec.sharded import planned

from shardwright.integrations.torchrec.plan_files import save_sharding_plan

pytestmark = [pytest.mark.slow, pytest.mark.torchrec]

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(sw.__file__).parents[1]), "COLUMNS": "140"}
ROOT = Path(__file__).parents[2]
A_ROWS = 3000

# A rank that does something else with its request.
RANK = """
import os, signal, time
from shardwright.measure.collectives.rank import main

def answer(member, request, policy):
    if member.rank == 1:
        {body}
    time.sleep(3600)

main(answer)
"""


def verify(*arguments):
    command = [sys.executable, "-m", "examples.run_torchrec", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT, timeout=200, check=False)


@pytest.fixture(scope="module")
def plan():
    tables = [
        Table("a", A_ROWS, 16, 5.0),
        Table("b", 1000, 8, 3.0),
        Table("c", 50, 8),
        Table("d", 300, 8, 2.0, pooled=False),
    ]
    task = Task(tables, Topology(devices_per_host=2, memory="100 MB"), 64)
    a, _, c, d = tables
    rows = [Shard("b", (0, 500), (0, 8), (0,)), Shard("b", (500, 1000), (0, 8), (1,))]
    found = Plan(task, [Shard.whole(a, 1), *rows, Shard.whole(c, 0, 1), Shard.whole(d, 0)])
    found.check()
    return found


@pytest.fixture
def plan_file(plan, tmp_path):
    from shardwright.cost import cost_model_for
    from shardwright.cost.score import scored

    scored(plan, cost_model_for("cpu")).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_steps_phases_and_memory_of_every_rank(plan, plan_file):
    done = verify(plan_file, "--steps", 3, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    for rank in document["ranks"]:
        assert len(rank["step_ms"]) == 3
        assert rank["phases"].keys() == set(PHASES)
        assert all(rank["phases"][phase] > 0 for phase in PHASES)
        for part in ("weights", "optimizer"):
            account = getattr(plan.memory, part)[rank["rank"]]
            assert rank[f"account_{part}_bytes"] == account
            assert rank[f"{part}_bytes"] == pytest.approx(account, rel=0.1, abs=200)
    medians = [sorted(rank["step_ms"])[1] for rank in document["ranks"]]
    assert document["step_ms"] >= max(medians) * 0.999
    assert document["predicted_step_ms"] == Plan.load(plan_file).cost.step_ms


def test_a_saved_torchrec_plan_runs_on_the_plans_task(plan, plan_file, tmp_path):
    whole = replace(plan, shards=[Shard.whole(table, 0) for table in plan.task.tables])
    save_sharding_plan(planned(whole, "cpu"), tmp_path / "sharding_plan.json")
    done = verify(plan_file, "--sharding-plan", tmp_path / "sharding_plan.json", "--steps", 1)
    assert done.returncode == 0, done.stderr
    weights = sum(table.weight_bytes for table in plan.task.tables)
    assert f"{weights / 1e3:.1f} KB" in done.stdout or f"{weights / 1e3:.1f} kB" in done.stdout
    assert "run by TorchRec" in done.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--timeout", "0"], "timeout is 0.0 s"),
        (["--steps", "0"], "steps is 0"),
        (["--device", "tpu"], "device is 'tpu'"),
        (["--sharding-plan", "no-such-file.json"], "no-such-file.json"),
    ],
)
def test_bad_values_are_one_line(capsys, plan_file, options, says):
    assert main([str(plan_file), *options]) == 2
    assert says in capsys.readouterr().err


def test_without_torchrec_the_install_command_is_named(capsys, plan_file, monkeypatch):
    def missing():
        raise MissingDependency("planning for TorchRec needs TorchRec; install with: pip install torchrec")

    monkeypatch.setattr("examples.run_torchrec.__main__.require_torchrec", missing)
    assert main([str(plan_file)]) == 1
    assert "pip install torchrec" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "timeout_s", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 60, "rank 1 was ended by SIGKILL"),
        ("raise RuntimeError('odd')", 60, "rank 1 exited with 1. Its last lines: .*odd"),
        ("time.sleep(3600)", 2, "took longer than 2 s to run the plan"),
    ],
)
def test_a_rank_that_dies_or_hangs_ends_in_an_error(plan, body, timeout_s, says):
    program = ("-c", RANK.format(body=body))
    with pytest.raises(MeasurementFailed, match=says):
        run_plan(plan, RunOptions(timeout_s=timeout_s, program=program))
    assert not _running(program[1])


def test_blocks_that_torchrec_cannot_run_are_refused_before_any_process_starts(plan):
    cuts = [Shard("a", (0, 100), (0, 16), (0,)), Shard("a", (100, A_ROWS), (0, 16), (1,))]
    unequal = replace(plan, shards=[*cuts, *(shard for shard in plan.shards if shard.table != "a")])
    with pytest.raises(InvalidPlan, match="table 'a'"):
        run_plan(unequal)


def test_a_saved_plan_of_other_tables_is_refused(plan, plan_file, tmp_path):
    other = Task([Table("other", 100, 8)], plan.task.topology, 64)
    save_sharding_plan(planned(Plan(other, [Shard.whole(other.tables[0], 0)]), "cpu"), tmp_path / "other.json")
    with pytest.raises(InvalidPlan, match="missing"):
        run_plan(plan, sharding_plan=tmp_path / "other.json")


def _running(program: str) -> list[str]:
    """Processes of this program that still run a second later."""
    time.sleep(1)
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if program.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found
