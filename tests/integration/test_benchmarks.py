"""The benchmark programs run with tiny arguments and write their pages; kills and failures lose nothing."""

import importlib.util
import json
from functools import partial

import pytest

import shardwright as sw
from shardwright.cost import cost_model_for
from shardwright.cost.published import CALL_MS, FACTORS
from shardwright.errors import InfeasibleTask
from shardwright.task import Table, Task, Topology

TINY_TRAINING = [
    "--dreamshard-option", "iterations=2", "--dreamshard-option", "cost_updates=3", "--dreamshard-option", "policy_updates=2",
    "--autoshard-option", "steps=200", "--autoshard-option", "unroll=20", "--autoshard-option", "batch=2",
    "--autoshard-option", "lag=2", "--autoshard-option", "cost_updates=2",
]  # fmt: skip
TRAINING_SET = "groups: [{count: 3, half: train, tables: 5, devices: 2, dims: [16], device: cpu, batch_size: 1024}]"

# A program, the packages that it needs, its arguments, and the files that it writes.
PROGRAMS = [
    ("search_quality", "", "--tasks 1 --models cpu --time-limit 0.2", "search_quality.md search_quality.csv"),
    ("search_quality", "", "--large --sizes 8x16 --seeds 1 --models h100 --tails heavy --time-limit 0.2", "search_quality_large.md"),
    ("search_scaling", "", "--largest 25x4 --repeats 1 --time-limit 0.5 --diagonal", "search_scaling.md"),
    ("exact_gaps", "", "--tasks 1 --sizes 4x2 --models h100", "exact_gaps.md"),
    ("anytime", "", "--tasks 1 --sizes 6x2 --limits 0.2 0.5", "anytime.md"),
    ("plans_measured", "fbgemm_gpu", "--tasks 1 --devices 2 --rounds 1 --strategies random size", "plans_measured.md"),
    ("gpu_model", "", "", "gpu_model.md"),
    ("published_links", "", "", "published_links.md"),
    ("published_plans", "torchrec", "--tasks 1 --seconds 0.2 --public", "published_plans.md"),
    ("learned_quality", "", "--tasks 1 --large 0 --time-limit 0.5", "learned_quality.md"),
    ("learned_guidance", "", "--sizes 12x2 --seeds 1 --seconds 0.3", "learned_guidance.md"),
    ("fastest_of", "pyarrow", "", "fastest_of.md"),
]  # fmt: skip

# Programs that are given two learned policies.
PROGRAMS_OF_POLICIES = [
    (
        "learned_measured", "fbgemm_gpu",
        "--settings 4x2 --tasks 1 --rounds 1 --time-limit 0.5 --strategies random lookup autoshard dreamshard", "learned_measured.md",
    ),
    ("learned_speed", "", "--repeats 1 --sizes 6x2 9x4", "learned_speed.md"),
]  # fmt: skip


def check_run(program, tmp_path, name, needs, arguments, written):
    """Runs a program, and checks that its files exist and are not empty."""
    missing = [package for package in needs.split() if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"the program needs {', '.join(missing)}")
    module = program(name)
    module.main(arguments) if arguments or name not in ("gpu_model", "fastest_of") else module.main()
    assert all((tmp_path / file).stat().st_size > 0 for file in written.split())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "needs", "arguments", "written"), PROGRAMS)
def test_programs_run(program, tmp_path, name, needs, arguments, written):
    check_run(program, tmp_path, name, needs, arguments.split(), written)


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Options that name two policies, learned for a moment."""
    pytest.importorskip("torch", reason="policies are learned with torch")
    from shardwright.learned.options import AutoShardOptions, DreamShardOptions
    from shardwright.learned.policy_files import save_policy
    from shardwright.learned.trainer import learn
    from shardwright.learned.worlds import SimulatedWorld
    from shardwright.testing.tasks import task_of

    folder, world = tmp_path_factory.mktemp("policies"), SimulatedWorld(cost_model_for("cpu"))
    tasks = [task_of(6, 2), task_of(9, 3)]
    made = {
        "dreamshard": learn(tasks, world, DreamShardOptions(iterations=1, cost_updates=3, policy_updates=1)),
        "autoshard": learn(tasks, world, AutoShardOptions(steps=60, unroll=20, batch=1, lag=3, cost_updates=2)),
    }
    options = []
    for name, policy in made.items():
        save_policy(policy, folder / f"{name}.safetensors")
        options += [f"--{name}", str(folder / f"{name}.safetensors")]
    return options


@pytest.mark.slow
@pytest.mark.parametrize(("name", "needs", "arguments", "written"), PROGRAMS_OF_POLICIES)
def test_programs_of_policies_run(program, tmp_path, policies, name, needs, arguments, written):
    check_run(program, tmp_path, name, needs, [*arguments.split(), *policies], written)


@pytest.mark.slow
def test_programs_that_train_run(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text(TRAINING_SET)
    given = ["--tasks-file", "train.yaml", "--setting", "5x2", "--tasks", "2", "--policies", "policies"]
    check_run(program, tmp_path, "learned_published", "torch", [*given, *TINY_TRAINING], "learned_published.md")


@pytest.mark.slow
def test_costs_of_a_part_of_two_processors_are_transferred(program, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet", reason="costs are kept in Parquet")
    from shardwright.modelling import adapting
    from shardwright.modelling.training import TrainingOptions

    transfer = program("cost_transfer")
    for file in sorted(transfer.FOLDER.glob("amd*/fbgemm.parquet"))[:2]:
        (tmp_path / file.parent.name).mkdir()
        parquet.write_table(parquet.read_table(file).slice(0, 240), tmp_path / file.parent.name / file.name)
    monkeypatch.setattr(transfer, "FOLDER", tmp_path)
    monkeypatch.setattr(transfer, "train", partial(transfer.train, options=TrainingOptions(epochs=5)))
    for name in ("_UPDATES", "_FINE_UPDATES"):
        monkeypatch.setattr(adapting, name, 20)
    check_run(program, tmp_path, "cost_transfer", "", ["--seeds", "1", "--sizes", "60"], "cost_transfer.md")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "setting"), [("public_models", "nvidia-tiny"), ("overlap", "nvidia-tiny, 8")])
def test_programs_with_a_journal_run(program, tmp_path, monkeypatch, name, setting):
    monkeypatch.setattr(program(name), "SECONDS", 1.0)
    arguments = ["--only", setting, "--journal", str(tmp_path / "journal.jsonl")]
    check_run(program, tmp_path, name, "", arguments, f"{name}.md")


def test_the_default_against_all_strategies(program, tmp_path):
    """An odd task; the page is written once all tasks are done, or on demand."""
    journal = tmp_path / "journal.jsonl"
    program("default_plan").main(["--tasks", "2", "--part", "2/2", "--journal", str(journal)])
    assert not (tmp_path / "default_plan.md").exists()
    (row,) = map(json.loads, journal.read_text().splitlines())
    assert row["task"] == 1
    assert row["steps"]["auto"] <= min(step for step in row["steps"].values() if step is not None) * 1.002
    program("default_plan").main(["--tasks", "2", "--page", "--journal", str(journal)])
    assert (tmp_path / "default_plan.md").exists()


@pytest.mark.slow
def test_shards_of_cut_tables_tile_the_uncut_tables(program, tmp_path, monkeypatch):
    by_hand = program("cut_by_hand")
    monkeypatch.setattr(by_hand, "SECONDS", 0.1)
    task = by_hand.task_of("one table", 2)
    for (tables, parts), smaller in by_hand.cut_tasks(task):
        assert (tables, len(smaller.tables)) == (1, parts)
        shards = by_hand.together(task, sw.plan(smaller, runs_on="torchrec", time_limit=0.1))
        sw.Plan(task, shards).check()
    by_hand.main(["--quick"])
    assert (tmp_path / "cut_by_hand.md").exists()


@pytest.mark.slow
def test_published_figures_give_the_bundled_model_of_gpus(program, tmp_path):
    """The figures in the package are those that the program fits."""
    pytest.importorskip("torchrec", reason="TorchRec's formula stands beside")
    costs = program("published_costs")
    figures, _ = costs.fitted(costs.read_table())
    stated = [1e3 * CALL_MS[0], *FACTORS[0], 1e3 * CALL_MS[1], *FACTORS[1]]
    assert figures == pytest.approx(stated, rel=5e-3)
    costs.main([])
    assert (tmp_path / "published_costs.md").exists()


def test_an_estimate_measures_nothing(program, tmp_path, capsys):
    program("plans_measured").main(["--tasks", "1", "--strategies", "random", "size", "--estimate"])
    assert "4 plans" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_search_that_does_not_end_is_killed(program, tmp_path, monkeypatch):
    scaling = program("search_scaling")
    monkeypatch.setattr(scaling, "START_S", 0.05)  # less than the process needs to start
    arguments = ["--largest", "25x4", "--repeats", "2", "--time-limit", "0", "--diagonal", "--strategies", "certified"]
    scaling.main(arguments)
    assert "killed" in (tmp_path / "search_scaling.md").read_text()


def test_the_cache_keeps_plans_by_time_limit(program, tmp_path, monkeypatch):
    pytest.importorskip("torchrec", reason="the program compares with TorchRec")
    quality, limits = program("torchrec_quality"), []

    def made(task, planner, options):
        limits.append(options.torchrec_time_limit)
        if options.torchrec_time_limit < 10:
            raise InfeasibleTask("not within the time limit")
        return sw.plan(task, strategy="greedy")

    monkeypatch.setattr(quality, "made_plan", made)
    case = quality.Case("s", "c", Task([Table("t", 1000, 16)], Topology(devices_per_host=2), 1024))
    plans = [
        quality.kept_plan(
            case, "torchrec", "torchrec", quality.parsed(["--cache", str(tmp_path), "--torchrec-time-limit", limit])
        )
        for limit in ("5", "5", "20", "20", "30")
    ]
    assert [plan is not None for plan in plans] == [False, False, True, True, True]
    assert limits == [5, 20, 30]


@pytest.mark.slow
def test_learn_policies(program, tmp_path):
    pytest.importorskip("torch", reason="policies are learned with torch")
    from shardwright.cost.files import bundled_models
    from shardwright.learned.policy_files import load_policy

    (tmp_path / "train.yaml").write_text("groups: [{count: 3, half: train, tables: 5, devices: 2, dims: [16]}]")
    given = ["--processor", str(bundled_models()["cpu"]), "--tasks", str(tmp_path / "train.yaml"), "--rounds", "1"]
    program("learn_policies").main([str(tmp_path / "made"), *given, "--logs", str(tmp_path / "logs")])
    for name in ("autoshard", "dreamshard"):
        made = load_policy(tmp_path / "made" / f"{name}.safetensors", name)
        assert made.metadata["world"].count("/published") == 6
        assert not (tmp_path / "logs" / name / "checkpoint").exists()


def test_options_take_their_kind_from_their_default(program, capsys):
    options_of, size = program("program").options_of, lambda text: tuple(map(int, text.split("x")))
    wanted = {
        "folder": (str, "", {"positional": True}), "tasks": 3, "time_limit": (2.0, "seconds"), "page": (False, "only the page"),
        "devices": [4, 8], "only": (int, "one task"), "kind": ("a", "", ("a", "b")), "size": ("4x2", "", size),
    }  # fmt: skip
    assert vars(options_of("About.", ["here"], **wanted)) == {
        "folder": "here", "tasks": 3, "time_limit": 2.0, "page": False, "devices": [4, 8], "only": None, "kind": "a", "size": (4, 2),
    }  # fmt: skip
    given = "here --tasks 5 --time-limit 1 --page --devices 2 --only 7 --kind b --size 9x3"
    assert vars(options_of("About.", given.split(), **wanted)) == {
        "folder": "here", "tasks": 5, "time_limit": 1.0, "page": True, "devices": [2], "only": 7, "kind": "b", "size": (9, 3),
    }  # fmt: skip
    for wrong in (["here", "--kind", "c"], ["here", "--tasks", "1.5"], []):
        with pytest.raises(SystemExit):
            options_of("About.", wrong, **wanted)
    capsys.readouterr()


def test_a_journal_makes_only_missing_rows(program, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    journal = program("program").Journal(path, "task")
    assert journal.kept(1, lambda: {"step": 2.0}) == {"task": 1, "step": 2.0}
    with path.open("a") as file:
        file.write('{"task": 2, "st')
    again = program("program").Journal(path, "task")
    assert again.kept(1, lambda: pytest.fail("the row is there")) == {"task": 1, "step": 2.0}
    again.add(2, step=3.0)
    assert [json.loads(line) for line in path.read_text().splitlines()] == again.rows == [
        {"task": 1, "step": 2.0}, {"task": 2, "step": 3.0},
    ]  # fmt: skip
    assert "'step': 2.0" in capsys.readouterr().err


def test_no_planner_is_below_the_bound(program, monkeypatch):
    """Steps of strategies that need no packages on one small task."""
    rivals = program("rivals")
    monkeypatch.setattr(rivals, "RIVALS", ("hugectr", "greedy", "row_wise"))
    monkeypatch.setattr(rivals, "SECONDS", {"certified": 0.5})
    tables = [Table(f"t{i}", 1000, 64, 5.0) for i in range(6)]
    row = rivals.outcome(Task(tables, Topology.preset("h100-8", devices_per_host=4), 4096))
    assert row["bound"] <= row["steps"]["certified"] * (1 + 1e-9)
    assert all(step >= row["bound"] * (1 - 1e-9) for step in row["steps"].values())
