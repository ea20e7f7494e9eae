"""`shardwright verify --steps` and `tune --steps`: plans trained by real TorchRec processes, and the errors when a rank dies or hangs."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import shardwright as sw
from shardwright.cost import cost_model_for
from shardwright.cost.score import scored
from shardwright.errors import InvalidPlan, MeasurementFailed, MissingDependency
from shardwright.sharding import Plan, Shard
from shardwright.task import Exchange, Table, Task, Topology

pytest.importorskip("torchrec", reason="needs TorchRec")

from shardwright.integrations.torchrec.plan_files import save_sharding_plan
from shardwright.integrations.torchrec.steps.rank import Rounds
from shardwright.integrations.torchrec.steps.run import PHASES, STEP, run_here
from shardwright.integrations.torchrec.steps.sharded import planned

pytestmark = [pytest.mark.slow, pytest.mark.torchrec]

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(sw.__file__).parents[1]), "COLUMNS": "140"}
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


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command in this process, which has TorchRec already; its ranks are processes."""
    from shardwright.cli.main import main

    monkeypatch.setenv("COLUMNS", "140")

    def run_command(*arguments):
        code = main([*map(str, arguments)])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run_command


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
    mixed_plan = Plan(task, [Shard.whole(a, 1), *rows, Shard.whole(c, 0, 1), Shard.whole(d, 0)])
    mixed_plan.check()
    return mixed_plan


@pytest.fixture
def plan_file(plan, tmp_path):
    scored(plan, cost_model_for("cpu")).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_steps_phases_and_memory_of_every_rank_in_turns_with_a_saved_torchrec_plan(command, plan, plan_file, tmp_path):
    whole = replace(plan, shards=[Shard.whole(table, 0) for table in plan.task.tables])
    save_sharding_plan(planned(whole, "cpu"), against := tmp_path / "sharding_plan.json")
    done = command("verify", plan_file, "--steps", "--against", against, "--rounds", 2, "--json")
    assert done.returncode == 0, done.stderr
    report, other = json.loads(done.stdout)["plans"]
    assert report["step_ms"] > 0
    assert report["predicted_step_ms"] == Plan.load(plan_file).cost.step_ms
    assert report["phases"].keys() == {*PHASES, STEP}
    for times in report["phases"].values():
        assert len(times["rounds_ms"]) == 2
        assert times["measured_ms"] > 0
    for part in ("weights", "optimizer"):
        for rank, held in enumerate(report["ranks"]):
            account = getattr(plan.memory, part)[rank]
            assert held[f"account_{part}_bytes"] == account
            assert held[f"{part}_bytes"] == pytest.approx(account, rel=0.1, abs=200)
    assert other["ranks"][0]["weights_bytes"] == sum(table.weight_bytes for table in plan.task.tables)
    assert other["ranks"][1]["weights_bytes"] == 0


def test_the_ranks_that_torchrun_started_train(plan_file):
    done = as_torchrun(2, "verify", plan_file, "--steps", "--rounds", 1, "--against", plan_file)
    assert [code for code, *_ in done] == [0, 0], done
    assert "step: predicted" in done[0][1]
    assert not done[1][1]


def test_every_rank_reports_a_wrong_number_of_ranks(plan_file):
    for code, _, said in as_torchrun(1, "verify", plan_file, "--steps"):
        assert code == 2
        assert "the plan is for 2 devices, and torchrun started 1 ranks" in said


def test_a_lost_rank_ends_the_others_with_an_error(plan_file):
    """Rank 1 is killed while it trains, or, on a slow machine, before it joins; rank 0 reports either."""
    with torchrun_ranks(2, "verify", plan_file, "--steps", "--rounds", 5000, "--timeout", 20) as ranks:
        time.sleep(12)
        ranks[1].kill()
        _, said = ranks[0].communicate(timeout=200)
    assert ranks[0].returncode == 1
    assert re.search(r"error: rank 0( did not run the plan: .+| waited 20 s for rank 1 of 2)", said), said
    assert "Traceback" not in said


def check_tuned(document, plan_file):
    """The saved plan is the candidate that was taken, and TorchRec's plan took turns with the default one."""
    named = {name: candidate for candidate in document["candidates"] for name in candidate["name"].split(" = ")}
    assert {"default", "torchrec"} <= named.keys()
    least = 3 if len(document["candidates"]) > 1 and document["stopped"] == "settled" else 1
    assert all(len(candidate["rounds_ms"]) >= least for candidate in named.values())
    assert document["stopped"] in ("settled", "time")
    saved, taken = Plan.load(plan_file), named[document["taken"].split(" = ")[0]]
    assert saved.cost.step_ms == taken["predicted_step_ms"]
    assert "torchrec" in saved.runs_on
    if taken is not named["default"]:
        assert taken["against_default"] < 0


def test_the_fastest_measured_plan_is_kept(command, plan, tmp_path):
    plan.task.save(tmp_path / "task.yaml")
    options = ["--steps", "--minutes", 0.2, "-o", tmp_path / "tuned.json", "--json"]
    done = command("tune", tmp_path / "task.yaml", *options)
    assert done.returncode == 0, done.stderr
    check_tuned(json.loads(done.stdout), tmp_path / "tuned.json")


def test_the_ranks_that_torchrun_started_tune(plan, tmp_path):
    plan.task.save(tmp_path / "task.yaml")
    options = ["--steps", "--minutes", 0.2, "-o", tmp_path / "tuned.json", "--json"]
    done = as_torchrun(2, "tune", tmp_path / "task.yaml", *options)
    assert [code for code, *_ in done] == [0, 0], done
    assert not done[1][1]
    check_tuned(json.loads(done[0][1]), tmp_path / "tuned.json")


def as_torchrun(world, name, *arguments):
    """Exit code and output of each rank of a command, started with the variables that torchrun sets."""
    with torchrun_ranks(world, name, *arguments) as ranks:
        said = [rank.communicate(timeout=200) for rank in ranks]
    return [(rank.returncode, *texts) for rank, texts in zip(ranks, said, strict=True)]


@contextmanager
def torchrun_ranks(world, *arguments):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = [sys.executable, "-m", "shardwright", *map(str, arguments)]
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = []
    try:
        for rank in range(world):
            variables = {name: str(value) for name, value in {**place, "RANK": rank, "LOCAL_RANK": rank}.items()}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            ranks.append(subprocess.Popen(program, env=ENVIRONMENT | variables, **pipes))
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--steps", "--timeout", "0"], "timeout is 0.0 s"),
        (["--steps", "--rounds", "0"], "rounds"),
        (["--steps", "--device", "tpu"], "device is 'tpu'"),
        (["--steps", "--against", "no-such-file.json"], "no-such-file.json"),
        (["--steps", "--backend", "fbgemm"], "leave one of the two out"),
        (["--against", "torchrec"], "add --steps"),
    ],
)
def test_bad_values_are_one_line(command, plan_file, options, says):
    done = command("verify", plan_file, *options)
    assert done.returncode == 2
    assert says in done.stderr


def test_without_torchrec_the_install_command_is_named(command, plan_file, monkeypatch):
    def missing():
        raise MissingDependency("planning for TorchRec needs TorchRec; install with: pip install torchrec")

    monkeypatch.setattr("shardwright.integrations.torchrec.requirements.require_torchrec", missing)
    done = command("verify", plan_file, "--steps")
    assert done.returncode == 1
    assert "pip install torchrec" in done.stderr


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
        run_here([plan], timeout_s=timeout_s, program=program)
    assert not _running(program[1])


def with_unequal_rows(plan, exchange):
    cuts = [Shard("a", (0, 100), (0, 16), (0,)), Shard("a", (100, A_ROWS), (0, 16), (1,))]
    others = [shard for shard in plan.shards if shard.table != "a"]
    return replace(plan, task=replace(plan.task, exchange=exchange), shards=[*cuts, *others])


def test_blocks_that_no_runtime_runs_are_refused_before_any_process_starts(plan):
    with pytest.raises(InvalidPlan, match="table 'a'"):
        run_here([with_unequal_rows(plan, Exchange(values="int8"))])


UNTRAINED = [
    ("cpu", Exchange(gradients="int8"), "for GPUs alone"),
    ("cpu", Exchange(values="fp16", gradients="fp16", conversion="kernel"), "do not match it on CPUs"),
    ("cuda", Exchange(values="fp16", conversion="kernel"), "in both directions"),
    ("cuda", Exchange(values="int8"), "no int8 codec"),
]


@pytest.mark.parametrize(("kind", "exchange", "says"), UNTRAINED)
def test_types_that_torchrec_does_not_train_with_are_refused(plan, kind, exchange, says):
    with pytest.raises(InvalidPlan, match=says):
        planned(replace(plan, task=replace(plan.task, exchange=exchange)), kind)


def test_torchrec_trains_with_narrow_values_on_the_wire(plan):
    narrow = replace(plan, task=replace(plan.task, exchange=Exchange(values="fp16", gradients="bf16")))
    (steps,) = run_here([narrow], Rounds(rounds=1, steps=2, warm_up=1, profiled=1))
    assert steps.step_ms > 0


def test_a_plan_that_torchrec_cannot_run_is_trained_by_the_runtime_in_turns_with_torchrecs(command, plan, tmp_path):
    ours = with_unequal_rows(plan, Exchange(collectives="shared"))
    scored(ours, cost_model_for("cpu")).save(tmp_path / "ours.json")
    done = command("verify", tmp_path / "ours.json", "--steps", "--against", "torchrec", "--rounds", 2, "--json")
    assert done.returncode == 0, done.stderr
    of_ours, of_torchrec = json.loads(done.stdout)["plans"]
    assert (of_ours["runs_on"], of_torchrec["runs_on"]) == ("shardwright", "torchrec")
    for report in (of_ours, of_torchrec):
        assert len(report["phases"][STEP]["rounds_ms"]) == 2
        assert report["step_ms"] > 0
        assert report["predicted_step_ms"] > 0
    for phase in PHASES:
        assert all(report["phases"][phase]["measured_ms"] > 0 for report in (of_ours, of_torchrec))
    for part in ("weights", "optimizer"):
        account = getattr(ours.memory, part)
        for rank, held in enumerate(of_ours["ranks"]):
            assert held[f"{part}_bytes"] == pytest.approx(account[rank], rel=0.1, abs=200)


def test_the_runtime_says_what_its_prediction_counts(command, plan, tmp_path):
    scored(with_unequal_rows(plan, Exchange()), cost_model_for("cpu")).save(tmp_path / "ours.json")
    done = command("verify", tmp_path / "ours.json", "--steps", "--rounds", 1)
    assert done.returncode == 0, done.stderr
    assert "trained by shardwright.runtime: plan" in done.stdout
    assert "exchange: {collectives: shared}" in done.stdout


def test_a_saved_plan_of_other_tables_is_refused(command, plan, plan_file, tmp_path):
    other = Task([Table("other", 100, 8)], plan.task.topology, 64)
    save_sharding_plan(planned(Plan(other, [Shard.whole(other.tables[0], 0)]), "cpu"), tmp_path / "other.json")
    done = command("verify", plan_file, "--steps", "--against", tmp_path / "other.json")
    assert done.returncode == 2
    assert "no table 'pooled.other'" in done.stderr


def _running(program: str) -> list[str]:
    """Processes of this program that still run a second later."""
    time.sleep(1)
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if program.encode() in path.read_bytes():
                pids.append(path.parent.name)
        except OSError:
            continue
    return pids
