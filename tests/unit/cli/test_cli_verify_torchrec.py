"""Options of `verify --torchrec`; running plans is tested with real processes in tests/integration."""

import pytest

import shardwright as sw
from shardwright.errors import MissingDependency


@pytest.fixture
def plan_file(task_file, model_file, tmp_path):
    path = tmp_path / "plan.json"
    sw.plan(sw.Task.load(task_file), cost_model=str(model_file)).save(path)
    return path


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sharding-plan", "x.json"], "--sharding-plan: is for a run by TorchRec; add --torchrec"),
        (["--torchrec", "--tolerance", "0.1"], "--tolerance: is for kernels alone"),
        (["--torchrec", "--steps", "0"], "Invalid value for '--steps'"),
    ],
)
def test_options_that_do_not_go_together(cli, plan_file, options, says):
    outcome = cli("verify", plan_file, *options)
    assert outcome.code == 2
    assert says in outcome.err


@pytest.mark.torchrec
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--timeout", "0"], "timeout is 0.0 s"),
        (["--device", "tpu"], "device is 'tpu'"),
        (["--sharding-plan", "no-such-file.json"], "no-such-file.json"),
    ],
)
def test_bad_values(cli, plan_file, options, says):
    pytest.importorskip("torchrec")
    outcome = cli("verify", plan_file, "--torchrec", *options)
    assert outcome.code == 2
    assert says in outcome.err


@pytest.mark.torchrec
def test_a_plan_that_torchrec_cannot_run(cli, plan_file):
    pytest.importorskip("torchrec")
    plan = sw.Plan.load(plan_file)
    table = plan.task.tables[0]
    cuts = [sw.Shard(table.name, rows, (0, table.dim), (rank,)) for rank, rows in enumerate(((0, 1), (1, table.rows)))]
    sw.Plan(plan.task, [*cuts, *(sw.Shard.whole(one, 0) for one in plan.task.tables[1:])]).save(plan_file)
    outcome = cli("verify", plan_file, "--torchrec", "--json")
    assert outcome.code == 2
    assert table.name in outcome.document["error"]["message"]


def test_without_torchrec_the_install_command_is_named(cli, plan_file, monkeypatch):
    def missing():
        raise MissingDependency("planning for TorchRec needs TorchRec; install with: pip install torchrec")

    monkeypatch.setattr("shardwright.integrations.torchrec.requirements.require_torchrec", missing)
    outcome = cli("verify", plan_file, "--torchrec")
    assert outcome.code == 1
    assert "pip install torchrec" in outcome.err
