"""The benchmark programs run with tiny arguments, and known results come out right."""

import csv
import importlib
import json
import subprocess

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost import cost_model_for
from shardwright.cost.published import CALL_MS, FACTORS, PublishedModel
from shardwright.errors import InfeasibleTask
from shardwright.sharding import Shard
from shardwright.sharding.memory import shard_bytes
from shardwright.task import PRESETS, Constraints, Table, TableConstraint, Task, Topology


def rows_of(page: str, head: str) -> list[dict[str, str]]:
    """The first table of a Markdown page whose head begins so."""
    lines = page.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head}"))
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[start:]]
    body = cells[2 : next((i for i, row in enumerate(cells) if row == [""]), len(cells))]
    return [dict(zip(cells[0], row, strict=True)) for row in body]


def test_the_default_beside_all_others(program, tmp_path):
    """A task of the odd kind; its page is written once all tasks are there, or on demand."""
    journal = tmp_path / "journal.jsonl"
    program("default_plan").main(["--tasks", "4", "--part", "4/4", "--journal", str(journal)])
    assert not (tmp_path / "default_plan.md").exists()
    (row,) = map(json.loads, journal.read_text().splitlines())
    assert row["task"] == 3
    assert row["steps"]["auto"] <= min(step for step in row["steps"].values() if step is not None) * 1.002
    program("default_plan").main(["--tasks", "4", "--page", "--journal", str(journal)])
    assert "1 of 4 tasks." in (tmp_path / "default_plan.md").read_text()


@pytest.mark.slow
def test_tables_that_are_cut_by_hand_are_put_together_again(program, tmp_path, monkeypatch):
    by_hand = program("cut_by_hand")
    monkeypatch.setattr(by_hand, "SECONDS", 1.0)
    task = by_hand.task_of("one table", 2)
    for (tables, parts), smaller in by_hand.cut_tasks(task):
        assert (tables, len(smaller.tables)) == (1, parts)
        shards = by_hand.together(task, sw.plan(smaller, runs_on="torchrec", time_limit=1.0))
        sw.Plan(task, shards).check()
    by_hand.main(["--quick"])
    rows = rows_of((tmp_path / "cut_by_hand.md").read_text(), "model")
    assert {row["blocks for"] for row in rows} == {"torchrec", "any blocks"}
    assert all(float(row["by hand / default"]) > 0 for row in rows)


@pytest.mark.slow
def test_search_quality_of_the_papers_tasks(program, tmp_path):
    program("search_quality").main(["--tasks", "1", "--models", "h100", "--time-limit", "0.5"])
    page = (tmp_path / "search_quality.md").read_text()
    assert "python -m benchmarks.search_quality --tasks 1" in page
    assert [row["setting"] for row in rows_of(page, "setting")] == ["h100, 4 devices", "h100, 8 devices"]
    with (tmp_path / "search_quality.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    assert all(float(row["certified ms"]) >= float(row["bound ms"]) * (1 - 1e-4) for row in rows)
    assert "<svg" in (tmp_path / "search_quality.svg").read_text()
    for row in rows_of(page, "setting | proven"):
        assert sum(int(row[f"by {part}"]) for part in ("prices", "pieces", "kernels", "holders", "classes")) == 1
        assert float(row["gap by prices, median"].rstrip("%")) >= float(
            row["+ ranges of kernels and holders"].rstrip("%")
        )


@pytest.mark.slow
def test_search_quality_of_clusters(program, tmp_path):
    arguments = ["--large", "--sizes", "30x16", "--seeds", "1", "--models", "h100", "--time-limit", "0.5"]
    program("search_quality").main(arguments)
    rows = rows_of((tmp_path / "search_quality_large.md").read_text(), "setting")
    assert [row["setting"] for row in rows] == ["h100, 30 × 16, pool", "h100, 30 × 16, heavy"]


@pytest.mark.slow
def test_search_scaling_measures_in_processes_of_their_own(program, tmp_path):
    program("search_scaling").main(["--largest", "50x4", "--repeats", "1", "--time-limit", "1", "--diagonal"])
    page = (tmp_path / "search_scaling.md").read_text()
    rows = rows_of(page, "strategy")
    assert [(row["strategy"], row["tables × devices"]) for row in rows] == [
        ("certified", "25 × 4"), ("neuroshard", "25 × 4"), ("certified", "50 × 4"), ("neuroshard", "50 × 4"),
    ]  # fmt: skip
    assert all(float(row["peak MB"]) >= float(row["MB at the start"]) > 0 for row in rows)
    assert "<svg" in (tmp_path / "search_scaling.svg").read_text()


@pytest.mark.slow
def test_exact_gaps(program, tmp_path):
    program("exact_gaps").main(["--tasks", "1", "--sizes", "4x2", "--models", "h100"])
    (row,) = rows_of((tmp_path / "exact_gaps.md").read_text(), "tables")
    assert (row["tables"], row["devices"], row["cost model"], row["tasks"]) == ("4", "2", "H100, published", "1 of 1")
    assert row["`certified` above the optimum: median"] == "0.00%"


@pytest.mark.slow
def test_what_each_search_finds_when(program, tmp_path):
    program("anytime").main(["--tasks", "1", "--sizes", "6x2", "--limits", "0.2", "0.5"])
    rows = [line.split(" | ") for line in (tmp_path / "anytime.md").read_text().splitlines() if line.startswith("| ")]
    assert [row[0].strip("| ") for row in rows[2:]] == [
        name for name in ("certified", "neuroshard", "mip") for _ in range(2)
    ]


@pytest.mark.slow
def test_plans_measured(program, tmp_path):
    pytest.importorskip("fbgemm_gpu", reason="real kernels need FBGEMM")
    arguments = ["--tasks", "1", "--devices", "4", "--rounds", "1", "--strategies", "random", "neuroshard", "certified"]
    program("plans_measured").main([*arguments, "--time-limit", "0.5"])
    page = (tmp_path / "plans_measured.md").read_text()
    assert [row["strategy"] for row in rows_of(page, "strategy | placed")] == ["random", "neuroshard", "certified"]
    assert [row["rival"] for row in rows_of(page, "strategy | rival")][:1] == ["neuroshard"]


@pytest.mark.slow
def test_the_h100s_model_on_plans_that_it_did_not_learn_from(program, tmp_path):
    """Better than the model that made the plans, even if that is rescaled; runs of one row matter most in backward."""
    program("gpu_model").main()
    page = (tmp_path / "gpu_model.md").read_text()
    before, rescaled, now, parts, no_runs, *_ = (
        [float(row[phase].rstrip("%")) for phase in ("forward", "backward")] for row in rows_of(page, "model | sets")
    )
    assert max(now[0] - 7.0, now[1] - 4.5) <= 0
    assert all(now[phase] < min(before[phase], rescaled[phase]) for phase in range(2))
    assert no_runs[1] > 1.5 * parts[1]
    steps = {row["strategy"]: row for row in rows_of(page, "strategy | tables") if row["tables"] == "pooled"}
    assert abs(float(steps["certified"]["now, median"]) - 1) < 0.03


@pytest.mark.slow
def test_what_calibrating_gives_on_a_machine_that_no_model_knows(program, tmp_path):
    program("cost_transfer").main(["--seeds", "1", "--sizes", "60"])
    rows = rows_of((tmp_path / "cost_transfer.md").read_text(), "sets | model")  # of the first processor
    assert [(row["sets"] == "0", row["model"]) for row in rows] == [
        (True, "other processors, as it is"),
        (False, "other processors, scaled"),
        (False, "other processors, fine-tuned"),
        (False, "from nothing"),
    ]
    errors = [float(row["mean error"].rstrip("%")) for row in rows]
    assert min(errors[1:]) < errors[0]


@pytest.mark.slow
def test_the_model_of_gpus_is_what_the_published_figures_give(program, tmp_path):
    """The figures in the package are those that the program fits; left-out sources and GPUs are within a factor of 2.5."""
    pytest.importorskip("torchrec", reason="TorchRec's formula stands beside")
    off_device = importlib.import_module("shardwright.integrations.torchrec.off_device")
    costs = program("published_costs")
    figures, _ = costs.fitted(costs.read_table())
    told = [1e3 * CALL_MS[0], *FACTORS[0], 1e3 * CALL_MS[1], *FACTORS[1]]
    assert figures == pytest.approx(told, rel=5e-3)
    costs.main([])
    page = (tmp_path / "published_costs.md").read_text()
    found = [float(row["ns a lookup"]) for row in rows_of(page, "source | tables | rows | lookups")]
    assert min(found) < 1e6 * off_device.FOUND_MS < max(found)
    everything = [rows_of(page, head)[-1] for head in ("source | GPU", "GPU | rows")]
    for row in everything:
        assert float(row["median"]) <= 1.25
        assert float(row["worst"]) <= 2.5
    assert "<svg" in (tmp_path / "published_costs.svg").read_text()


def test_links_from_published_collectives(program, tmp_path):
    program("published_links").main([])
    page = (tmp_path / "published_links.md").read_text()
    fitted = {
        (row["GPU"], row["fabric"], row["source"]): row
        for row in rows_of(page, "GPU | fabric | ranks | hosts | collective")
    }
    exchanged = {(row["GPU"], row["fabric"]): row for row in rows_of(page, "GPU | fabric | ranks | hosts | source")}
    inside, between = PRESETS["h100-8"].link_bandwidth
    assert float(exchanged["h100", "nvlink"]["GB/s a rank"]) == pytest.approx(inside / 1e9, rel=0.01)
    assert float(fitted["h100", "ib", "coreweave/nccl-tests"]["GB/s a rank"]) == pytest.approx(between / 1e9, rel=0.02)


@pytest.mark.slow
def test_plans_by_two_models_of_gpus(program, tmp_path):
    pytest.importorskip("torchrec", reason="TorchRec plans, too")
    program("published_plans").main(["--tasks", "2", "--seconds", "4", "--public"])
    rows = rows_of((tmp_path / "published_plans.md").read_text(), "tasks | planned by")
    assert [row["planned by"] for row in rows] == ["certified, published", "certified, stated", "torchrec"]
    assert [float(row["step, published"]) >= 0.999 for row in rows] == [True] * 3


def test_an_estimate_measures_nothing(program, tmp_path, capsys):
    program("plans_measured").main(["--tasks", "1", "--strategies", "random", "size", "--estimate"])
    assert "4 plans" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_wins_losses_and_what_is_removed(program):
    outcome = program("search_outcome").Outcome
    block = program("block_times").Heaviest("t", 0.6)

    def made(certified, neuroshard):
        steps = {"certified": certified, "neuroshard": neuroshard, "greedy": None, "best sorted": None}
        return outcome("g", 5, 2, steps, dict.fromkeys(steps, 0.1), 1.0, block, block, 0.1, 0.5)

    found = [made(1.1, 2.0), made(2.0, 2.0), made(2.0, 1.9), made(None, 2.0), made(2.0, None), made(None, None)]
    assert [one.against("neuroshard") for one in found] == ["win", "tie", "loss", "loss", "win", "neither"]
    assert [one.binds for one in found[:2]] == [True, False]
    heads, rows = program("quality_tables").large_table(found[:2])
    row = dict(zip(heads, rows[0], strict=True))
    assert row["removed, range"] == "0.00% to 90.00%"
    assert row["removed, of all"] == "45.0%"
    assert row["win / tie / loss"] == "1 / 1 / 0"


def test_smallest_and_cheapest_blocks(program):
    blocks, model = program("block_times"), PublishedModel("h100")
    topology = Topology.preset("h100-8", devices_per_host=4)
    hot, cold = Table("hot", 10_000, 64, 20.0), Table("cold", 10_000, 64, 1.0)
    free = Task([hot, cold], topology, 65_536)
    finest, cheapest = blocks.heaviest_blocks(free, model)
    whole = float(blocks.block_ms(free, [Shard.whole(hot, 0)], model)[0])
    assert finest.table == cheapest.table == "hot"
    assert finest.ms < whole / 4
    fixed = Task([hot, cold], topology, 65_536, constraints=Constraints({"hot": TableConstraint(("table_wise",))}))
    finest, cheapest = blocks.heaviest_blocks(fixed, model)
    assert finest.ms == cheapest.ms == pytest.approx(whole)


def test_replicas_that_the_checker_refuses_are_no_way(program):
    fits, table = program("block_times")._fits, Table("t", 100_000, 64, 20.0)
    whole, replicas = Shard.whole(table, 0), Shard.whole(table, 0, 1, 2, 3)

    def task(*memory):
        return Task([table], Topology.preset("h100-8", devices_per_host=4, memory=list(memory)), 1024)

    size = shard_bytes(task(*4 * ["1 GB"]), whole)
    assert fits(task(*4 * [size]), whole)
    assert not fits(task(*4 * [size]), replicas)  # their gradient takes memory too
    assert fits(task(*4 * [2 * size]), replicas)
    uneven = task(2 * size, 2 * size, 2 * size, size)
    assert fits(uneven, whole)
    assert not fits(uneven, replicas)


def test_a_planner_that_fails_leaves_a_dash(program, monkeypatch, capsys):
    speed, options = program("torchrec_planning_speed"), program("torchrec_planning_speed").parsed([])

    def failing(command, **_):
        raise subprocess.CalledProcessError(1, command, stderr="out of memory")

    monkeypatch.setattr(subprocess, "run", failing)
    failed = speed.measured("torchrec", (40, 8), 0, options)
    assert "torchrec (40, 8): failed\nout of memory" in capsys.readouterr().err
    ours = {"first_s": 2.0, "later_s": [0.5, 0.5], "gaps": [0.1, 0.2, 0.2], "steps_ms": [1.0, 1.0, 1.0]}
    theirs = {"first_s": 30.0, "later_s": [], "gaps": [], "steps_ms": [1.5]}

    def row(torchrec, shardwright):
        return speed.row_of((40, 8), {("torchrec", (40, 8)): torchrec, ("shardwright", (40, 8)): shardwright}, options)

    figures = ["0.500", "2.00", "60", "15", "20.0%", "10.0%", "1.50"]
    assert row([failed, theirs], [ours, ours]) == ["40 × 8", "30.0", *figures]
    assert row([failed], [ours])[1:] == ["–", "0.500", "2.00", "–", "–", "20.0%", "10.0%", "–"]
    assert row([None], [failed])[1:] == ["> 300.0", *7 * ["–"]]


def test_kept_plans_are_those_of_the_same_time_limit(program, tmp_path, monkeypatch):
    pytest.importorskip("torchrec", reason="the program compares with TorchRec")
    quality, limits = program("torchrec_quality"), []

    def made(task, planner, options):
        limits.append(options.torchrec_time_limit)
        if options.torchrec_time_limit < 10:
            raise InfeasibleTask("not within the time limit")
        return sw.plan(task, strategy="greedy")

    monkeypatch.setattr(quality, "made_plan", made)
    task = Task([Table("t", 1000, 16)], Topology(devices_per_host=2), 1024)
    found = [
        quality.kept_plan(
            quality.Case("s", "c", task),
            "torchrec",
            "torchrec",
            quality.parsed(["--cache", str(tmp_path), "--torchrec-time-limit", limit]),
        )
        for limit in ("5", "5", "20", "20", "30")
    ]
    assert [one is not None for one in found] == [False, False, True, True, True]
    assert limits == [5, 20, 30]


def test_a_block_takes_what_it_adds_to_a_device(program):
    from shardwright.cost.score import score

    blocks, model = program("block_times"), PublishedModel("h100")
    topology = Topology.preset("h100-8", hosts=2, devices_per_host=2, intra_latency_ms=0.0, inter_latency_ms=0.0)
    task = Task([Table("t", 10_000, 64, 20.0)], topology, 65_536)
    launches = model.pricing.price(np.zeros(2)).sum()
    for devices in ((0,), (0, 1, 2, 3)):
        shard = Shard.whole(task.tables[0], *devices)
        alone = score(task, [shard], model).devices[0].total_ms - launches
        assert blocks.block_ms(task, [shard], model)[0] == pytest.approx(alone)


def test_clusters_have_a_heavy_tail(program):
    make = program("cluster_tasks").cluster_task
    plain, heavy = (
        make(3, tables=200, devices=16, device="h100", batch_size=65_536, heavy_tail=tail) for tail in (False, True)
    )
    assert heavy == make(3, tables=200, devices=16, device="h100", batch_size=65_536, heavy_tail=True)
    assert (heavy.topology.hosts, heavy.topology.devices_per_host) == (2, 8)
    factors = np.array([b.pooling / a.pooling for a, b in zip(plain.tables, heavy.tables, strict=True)])
    assert np.median(factors) == pytest.approx(1.0, rel=0.3)
    assert factors.max() > 10
    assert max(table.pooling for table in heavy.tables) <= 2000
    assert sum(table.weight_bytes for table in heavy.tables) <= 0.8 * sum(heavy.topology.memory_bytes)


@pytest.mark.slow
def test_a_search_that_does_not_end_is_killed_and_said_so(program, tmp_path, monkeypatch):
    scaling = program("search_scaling")
    monkeypatch.setattr(scaling, "START_S", 0.05)  # less than the process needs to start
    scaling.main(
        ["--largest", "25x4", "--repeats", "2", "--time-limit", "0", "--diagonal", "--strategies", "certified"]
    )
    (row,) = rows_of((tmp_path / "search_scaling.md").read_text(), "strategy")
    assert row["ended"] == "killed"


def test_slopes(program):
    scaling = program("search_scaling")
    point = scaling.Point("certified", (1, 1), 0.0, 0.0, 0.0, 0.0, None, 0.0, "by itself")
    points = [
        type(point)(**{**vars(point), "size": (10 * 2**i, 4 * 2**i), "search_s": 0.01 * 4.0**i}) for i in range(4)
    ]
    page = program("scaling_page")
    assert page.slope(points, 0, lambda one: one.search_s) == "2.00"
    assert page.slope(points[:1], 0, lambda one: one.search_s) == "–"


TINY_TRAINING = [
    "--dreamshard-option", "iterations=2", "--dreamshard-option", "cost_updates=3", "--dreamshard-option", "policy_updates=2",
    "--autoshard-option", "steps=200", "--autoshard-option", "unroll=20", "--autoshard-option", "batch=2",
    "--autoshard-option", "lag=2", "--autoshard-option", "cost_updates=2", "--autoshard-option", "scattered=2",
]  # fmt: skip


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
def test_learned_curves(program, tmp_path, capsys):
    pytest.importorskip("torch", reason="policies are learned with torch")
    (tmp_path / "train.yaml").write_text(
        "groups: [{count: 3, half: train, tables: 5, devices: 2, dims: [16], device: cpu, batch_size: 1024}]"
    )
    arguments = ["--tasks-file", str(tmp_path / "train.yaml"), "--setting", "5x2", "--tasks", "2", *TINY_TRAINING]
    program("learned_curves").main([*arguments, "--seeds", "2", "--strategies", "dreamshard"])
    program("learned_curves").main([*arguments, "--seeds", "2"])
    assert capsys.readouterr().err.count("dreamshard, seed ") == 2 * 2
    rows = rows_of((tmp_path / "learned_curves.md").read_text(), "strategy")
    assert [(row["strategy"], row["seeds"]) for row in rows] == [("dreamshard", "2"), ("autoshard", "2")]
    with (tmp_path / "learned_curves.csv").open() as file:
        figures = {(row["strategy"], row["figure"]) for row in csv.DictReader(file)}
    assert {
        (name, what) for name in ("dreamshard", "autoshard") for what in ("validation_ms", "reward", "cost_error")
    } <= figures
    assert "<svg" in (tmp_path / "learned_curves_dreamshard.svg").read_text()


@pytest.mark.slow
def test_curves_are_those_of_the_learners(program, tmp_path):
    """What the program does round by round ends with the policy that learning as such makes."""
    pytest.importorskip("torch", reason="policies are learned with torch")
    curves, training = program("learned_curves"), program("learned_training")
    from experiments.learned.policy_training import LEARNERS
    from experiments.learned.tasks import Setting, draw_tasks

    from shardwright.learned.trainer import learn
    from shardwright.learned.worlds import SimulatedWorld

    tasks = draw_tasks(Setting(5, 2), 2)
    options = curves.parsed(TINY_TRAINING)
    for strategy in LEARNERS:
        chosen = training.options_of(strategy, 1, options)
        *_, (_, last) = curves.rounds_of(tasks, chosen)
        whole = learn(tasks, SimulatedWorld(cost_model_for("cpu")), chosen)
        assert last.weights.keys() == whole.weights.keys()
        assert all(np.array_equal(last.weights[name], whole.weights[name]) for name in whole.weights)


@pytest.mark.slow
def test_learned_costs_in_a_simulated_world(program, tmp_path, policies):
    program("learned_costs").main(["--settings", "6x2", "9x3", "--placements", "8", *policies])
    rows = rows_of((tmp_path / "learned_costs.md").read_text(), "placements")
    by_output = {(row["placements"], row["output"], row["by"].split(",")[0]): row for row in rows}
    assert by_output["all", "overall: step", f"pre-trained {cost_model_for('cpu').name}"]["mean error"] == "0.0%"
    assert by_output["all", "overall: step", f"pre-trained {cost_model_for('cpu').name}"]["values"] == "8"
    assert by_output["balanced", "overall: step", "dreamshard"]["values"] == "2"
    assert float(by_output["all", "backward communication", "dreamshard"]["mean error"].rstrip("%")) > 0
    assert float(by_output["random", "forward + backward", "autoshard"]["mean error"].rstrip("%")) > 0


@pytest.mark.slow
def test_learned_costs_and_plans_on_real_kernels(program, tmp_path, policies):
    pytest.importorskip("fbgemm_gpu", reason="real kernels need FBGEMM")
    program("learned_costs").main(["--settings", "4x2", "--measured", "2", "--rounds", "1", *policies])
    rows = rows_of((tmp_path / "learned_costs_measured.md").read_text(), "placements")
    assert {row["by"].split(",")[0] for row in rows} == {
        "dreamshard",
        "autoshard",
        f"pre-trained {cost_model_for('cpu').name}",
        "second measurement",
    }
    arguments = ["--settings", "4x2", "--tasks", "1", "--rounds", "1", "--time-limit", "0.5", *policies]
    program("learned_measured").main([*arguments, "--strategies", "random", "lookup", "autoshard", "dreamshard"])
    page = (tmp_path / "learned_measured.md").read_text()
    assert [row["strategy"] for row in rows_of(page, "strategy | placed")] == [
        "random",
        "lookup",
        "autoshard",
        "dreamshard",
    ]
    assert [row["heuristic"] for row in rows_of(page, "strategy | heuristic")] == ["lookup"] * 3


@pytest.mark.slow
def test_learned_speed(program, tmp_path, policies):
    program("learned_speed").main(["--repeats", "1", "--sizes", "6x2", "9x4", *policies])
    rows = rows_of((tmp_path / "learned_speed.md").read_text(), "strategy")
    assert [(row["strategy"], row["tables × devices"]) for row in rows] == [
        (name, size) for name in ("autoshard", "dreamshard", "greedy") for size in ("6 × 2", "9 × 4")
    ]


@pytest.mark.slow
def test_learned_published(program, tmp_path):
    pytest.importorskip("torch", reason="policies are learned with torch")
    (tmp_path / "train.yaml").write_text(
        "groups: [{count: 3, half: train, tables: 5, devices: 2, dims: [16], device: cpu, batch_size: 1024}]"
    )
    given = ["--tasks-file", str(tmp_path / "train.yaml"), "--setting", "5x2", "--tasks", "2"]
    program("learned_published").main([*given, "--policies", str(tmp_path / "policies"), *TINY_TRAINING[:-2]])
    rows = rows_of((tmp_path / "learned_published.md").read_text(), "strategy")
    methods = ["best heuristic", "here, bundled", "published, seed 0"]
    assert [(row["strategy"], row["method"]) for row in rows] == [
        (name, method) for name in ("dreamshard", "autoshard") for method in methods
    ]
    assert all(float(row["mean cost, ms"]) > 0 and row["placed"] == "2" for row in rows)


@pytest.mark.slow
def test_learned_quality(program, tmp_path):
    program("learned_quality").main(["--tasks", "1", "--large", "0", "--time-limit", "0.5"])
    page = (tmp_path / "learned_quality.md").read_text()
    rows = rows_of(page, "world")
    assert [row["learned from"] for row in rows] == ["no", "no", "yes", "yes", "no", ""]
    assert all(row["dreamshard, closed"].endswith("%") for row in rows)
    assert [row["strategy"] for row in rows_of(page, "strategy")][-1] == "certified"


@pytest.mark.slow
def test_learned_guidance(program, tmp_path):
    program("learned_guidance").main(["--sizes", "12x2", "--seeds", "1", "--seconds", "0.3"])
    rows = rows_of((tmp_path / "learned_guidance.md").read_text(), "task")
    assert [row["search"] for row in rows] == ["no policy", "guided", "guided alone"] * 2
    assert all(float(row["first step / best"]) >= float(row["final step / best"]) >= 1 for row in rows)


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


def test_a_journal_drops_what_a_kill_left_unfinished(program, tmp_path):
    journal = program("learned_journal").Journal
    path = tmp_path / "rows.csv"
    first = journal(path, ("a", "b"))
    first.add({"a": "1", "b": "with, comma"})
    with path.open("a") as file:
        file.write("2,torn")
    again = journal(path, ("a", "b"))
    assert again.rows == [{"a": "1", "b": "with, comma"}]
    again.add({"a": "2", "b": ""})
    again.keep(lambda row: row["a"] == "2")
    assert path.read_text() == "a,b\n2,\n"
    assert journal(path, ("other", "columns")).rows == []


def test_curves_settle(program):
    pytest.importorskip("torch", reason="policies are learned with torch")
    settled = program("learned_curves_page").settled
    assert settled(np.array([3.0, 1.0, 1.2, 1.005, 1.0])) == 4
    assert settled(np.array([1.0, 1.0])) == 1


def test_every_planner_on_the_same_tasks(program, tmp_path, monkeypatch):
    """Steps of strategies that need no packages on one small task, and a page of rows in which a rival fails."""
    rivals = program("rivals")
    monkeypatch.setattr(rivals, "RIVALS", ("hugectr", "greedy", "row_wise"))
    monkeypatch.setattr(rivals, "SECONDS", {"certified": 0.5})
    task = sw.Task(
        [Table(f"t{i}", 1000, 64, 5.0) for i in range(6)], Topology.preset("h100-8", devices_per_host=4), 4096
    )
    row = rivals.outcome(task)
    assert row["bound"] <= row["steps"]["certified"] * (1 + 1e-9)
    assert all(step >= row["bound"] * (1 - 1e-9) for name, step in row["steps"].items())
    rows = [
        {"task": "made-up 0", "devices": 4, "tables": 6, **row},
        {"task": "a model", "devices": 4, "tables": 6, **row, "steps": {**row["steps"], "greedy": None}},
    ]
    rivals.write(rows, "python -m benchmarks.rivals", 1)
    page = (tmp_path / "rivals.md").read_text()
    (made,) = [each for each in rows_of(page, "devices") if each["devices"] == "all"]
    assert float(made["row_wise"]) == pytest.approx(row["steps"]["certified"] / row["steps"]["row_wise"], abs=0.01)
    failed = {each["planner"]: each["no plan"] for each in rows_of(page, "planner")}
    assert failed == {"certified": "0", "hugectr": "0", "greedy": "1", "row_wise": "0"}


@pytest.mark.slow
def test_public_models_beside_published_steps(program, tmp_path, monkeypatch):
    public = program("public_models")
    monkeypatch.setattr(public, "SECONDS", 1.0)
    public.main(["--only", "nvidia-tiny", "--journal", str(tmp_path / "journal.jsonl")])
    rows = rows_of((tmp_path / "public_models.md").read_text(), "model")
    assert [row["published, ms"] for row in rows] == ["24.433", "5.537", "4.867"]
    for row in rows:
        assert 0 < float(row["kernels of it"]) <= float(row["embedding part, ms"]) < float(row["published, ms"])


@pytest.mark.slow
def test_overlap_on_public_models(program, tmp_path, monkeypatch):
    overlap = program("overlap")
    monkeypatch.setattr(overlap, "SECONDS", 1.0)
    overlap.main(["--only", "nvidia-tiny, 8", "--journal", str(tmp_path / "journal.jsonl")])
    rows = rows_of((tmp_path / "overlap.md").read_text(), "model")
    assert rows
    for row in rows:
        assert float(row["kernels"]) * 0.9 <= float(row["new plan"]) <= float(row["same plan"]) <= float(row["without"])
        assert float(row["bound"]) <= float(row["new plan"])


def test_which_of_the_plans_is_fastest(program, tmp_path):
    fastest = program("fastest_of")
    right, wrong = {"a": (1.0, 2.0), "b": (2.0, 3.0)}, {"a": (1.0, 1.1), "b": (2.0, 1.0), "c": (3.0, 9.0)}
    assert fastest.judged([right, wrong], lambda name: True) == [
        "2",
        "2 to 3",
        "50%",
        "5.0%",
        "10.0%",
        "50%",
        "75.0% of 4",
    ]
    assert fastest.judged([right, wrong], lambda name: name != "b")[:3] == ["1", "2 to 2", "100%"]
    pytest.importorskip("pyarrow")
    fastest.main()
    rows = rows_of((tmp_path / "fastest_of.md").read_text(), "hardware")
    assert [row["hardware"] for row in rows] == [
        name for name in ("H100, kernels", "CPU, kernels", "CPUs over gloo, whole steps") for _ in range(2)
    ]
