import pytest

import shardwright as sw
from shardwright.learned.policy_files import load_policy
from shardwright.learned.records import TrainingRecord, read_figures
from shardwright.testing.tasks import task_of
from tests.unit.cli.stores import write_store

SMALL = ["--rounds", 2, "--option", "tasks=2", "--option", "episodes=3"]
WITH_COSTS = {
    "dreamshard": ["--iterations", "2", "--option", "cost_updates=3", "--option", "collected=3", "--option", "policy_updates=1"],
    "autoshard": ["--steps", "40", "--option", "unroll=10", "--option", "batch=2", "--option", "lag=1", "--option", "cost_updates=2"],
}  # fmt: skip
"""Options of policies that learn a cost network too."""


@pytest.fixture
def train_file(tmp_path):
    for number in range(2):
        task_of(5 + number, 2 + number).save(tmp_path / f"task_{number}.yaml")
    path = tmp_path / "train.yaml"
    path.write_text("groups: [{file: task_0.yaml}, {file: task_1.yaml}]")
    return path


@pytest.fixture
def learn(cli, train_file, model_file, tmp_path):
    """Learns a small policy into policy.safetensors."""

    def run(strategy, *options, target="policy.safetensors"):
        given = ("--tasks", train_file, "--model", model_file, "-o", tmp_path / target)
        return cli("learn", strategy, *given, *SMALL, *options)

    return run


@pytest.mark.parametrize("strategy", ["dreamshard", "autoshard"])
def test_tasks_that_no_placement_fits_are_refused(learn, train_file, strategy):
    """The first table of each is larger than a device."""
    train_file.write_text("groups: [{count: 2, devices: 2, memory: 1 GB, sharding_types: [table_wise]}]")
    outcome = learn(strategy)
    assert outcome.code == 1
    assert "more than any device" in outcome.err or "memory" in outcome.err
    assert not (train_file.parent / "policy.safetensors").exists()


@pytest.mark.parametrize("strategy", ["dreamshard", "autoshard"])
def test_a_policy_is_learned_and_plans_a_task_never_seen(learn, cli, tmp_path, task_file, model_file, strategy):
    outcome = learn(strategy, "--seed", 4, "--log", tmp_path / "log", "--json")
    assert outcome.code == 0, outcome.err
    document, target = outcome.document, tmp_path / "policy.safetensors"
    assert (document["strategy"], document["saved"]) == (strategy, [str(target)])
    assert [row["iteration"] for row in document["figures"]] == [1, 2]
    assert document["figures"][0].keys() == {"iteration", "reward", "entropy"}
    assert read_figures(tmp_path / "log") == document["figures"]
    assert list((tmp_path / "log").glob("events.out.tfevents.*"))
    metadata = load_policy(target, strategy).metadata
    assert document["metadata"] == metadata
    assert metadata["world"] == "simulated: cpu/convex"
    assert metadata["tasks"].startswith("2 tasks of 5-6 tables on 2-3 devices, sha256 ")
    assert metadata["seed"] == "4"
    planned = cli("plan", task_file, "--model", model_file, "--strategy", strategy, "--policy", target, "--json")
    assert planned.code == 0, planned.err
    assert planned.document["strategy"] == strategy
    (tmp_path / "plan.json").write_text(planned.out)
    sw.Plan.load(tmp_path / "plan.json").check()


@pytest.mark.slow
def test_a_stopped_training_goes_on_from_its_checkpoint_to_the_same_policy(learn, tmp_path, monkeypatch):
    assert learn("dreamshard", target="whole.safetensors").code == 0
    step = TrainingRecord.step

    def stop(self, iteration, total, figures):
        step(self, iteration, total, figures)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRecord, "step", stop)
        stopped = learn("dreamshard", "--checkpoint", tmp_path / "state")
    assert stopped.code == 130
    assert f"the state is in {tmp_path / 'state'}: run the same command again" in stopped.err
    assert not (tmp_path / "policy.safetensors").exists()
    outcome = learn("dreamshard", "--checkpoint", tmp_path / "state", "--json")
    assert [row["iteration"] for row in outcome.document["figures"]] == [2]
    whole, resumed = (
        load_policy(tmp_path / name, "dreamshard") for name in ("whole.safetensors", "policy.safetensors")
    )
    assert whole.weights.keys() == resumed.weights.keys()
    for name, weights in whole.weights.items():
        assert (weights == resumed.weights[name]).all(), name


def test_ctrl_c_without_a_checkpoint_reports_that_nothing_is_saved(learn, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainingRecord, "step", stop)
    outcome = learn("dreamshard")
    assert outcome.code == 130
    assert "without saving; name a --checkpoint" in outcome.err


def test_a_checkpoint_of_another_training_is_refused(learn, tmp_path):
    first = learn("dreamshard", "--checkpoint", tmp_path / "state")
    assert first.code == 0
    assert "learned from costs simulated: cpu/convex" in first.out
    outcome = learn("dreamshard", "--checkpoint", tmp_path / "state", "--seed", 1)
    assert outcome.code == 2
    assert "the checkpoint was made with options" in outcome.err


@pytest.mark.parametrize("strategy", ["dreamshard", "autoshard"])
def test_a_checkpoint_does_not_go_on_under_another_trained_model(cli, train_file, tmp_path, strategy):
    write_store(tmp_path / "samples")
    outcomes = []
    for seed in (0, 1):
        model = tmp_path / f"model_{seed}.safetensors"
        assert cli("train", tmp_path / "samples", "-o", model, "--epochs", 1, "--seed", seed).code == 0
        given = ("--tasks", train_file, "--model", model, "-o", tmp_path / "policy.safetensors")
        outcomes.append(cli("learn", strategy, *given, *SMALL, "--checkpoint", tmp_path / "state"))
    assert [outcome.code for outcome in outcomes] == [0, 2]
    assert "the checkpoint was made with world 'simulated: cpu/convex-" in outcomes[1].err


def test_measured_costs_are_asked_of_this_machine(cli, train_file, model_file, tmp_path, monkeypatch):
    from shardwright.learned.worlds import MeasuredWorld, SimulatedWorld
    from shardwright.testing.model import SimpleCostModel

    devices = []

    def costs(self, placed):
        devices.append(self.device)
        return SimulatedWorld(SimpleCostModel()).costs(placed)

    monkeypatch.setattr(MeasuredWorld, "costs", costs)
    target = tmp_path / "policy.safetensors"
    outcome = cli("learn", "dreamshard", "--tasks", train_file, "-o", target, "--measured", *WITH_COSTS["dreamshard"])
    assert outcome.code == 0, outcome.err
    assert devices
    assert set(devices) == {"cpu"}
    assert load_policy(target, "dreamshard").metadata["world"].startswith("measured: device_kind cpu")


def test_plan_refuses_a_policy_that_does_not_fit(learn, cli, task_file, model_file, tmp_path):
    assert learn("dreamshard").code == 0
    policy = tmp_path / "policy.safetensors"
    given = ("plan", task_file, "--model", model_file)
    for strategy, says in {
        "greedy": "strategy 'greedy' takes no policy",
        "auto": "strategy 'auto' takes no policy",
        "autoshard": "the policy was learned by strategy 'dreamshard', not by 'autoshard'",
    }.items():
        outcome = cli(*given, "--strategy", strategy, "--policy", policy)
        assert outcome.code == 2
        assert says in outcome.err
    policy.write_bytes(b"x" * 100)
    outcome = cli(*given, "--strategy", "dreamshard", "--policy", policy)
    assert outcome.code == 2
    assert "policy.safetensors: not a whole safetensors file" in outcome.err


@pytest.mark.parametrize("strategy", ["dreamshard", "autoshard"])
def test_a_policy_as_published_is_learned_and_plans(cli, train_file, model_file, task_file, tmp_path, strategy):
    policy = tmp_path / "policy.safetensors"
    given = ("--tasks", train_file, "--model", model_file, "-o", policy, "--option", "preset=published")
    outcome = cli("learn", strategy, *given, *WITH_COSTS[strategy], "--json")
    assert outcome.code == 0, outcome.err
    assert {"reward", "cost_error", "entropy", "latency_ms"} <= outcome.document["figures"][0].keys()
    assert outcome.document["metadata"]["method"] == "paper"
    assert cli("plan", task_file, "--model", model_file, "--strategy", strategy, "--policy", policy).code == 0
