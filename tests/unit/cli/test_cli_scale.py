import shardwright as sw


def test_clusters_are_planned_and_shown(cli, task_file, model_file):
    outcome = cli(
        "scale", task_file, "--hosts", "2,1", "--model", model_file, "--time-limit", 0.2, "--price", "cpu=1.5"
    )
    assert outcome.code == 0
    rows = [line.split() for line in outcome.out.splitlines() if " × " in line]
    assert [row[0] for row in rows if row[1] == "×"][:2] == ["1", "2"]
    assert "$/billion" in outcome.out


def test_the_document_holds_what_the_bounds_allow(cli, task_file, model_file, tmp_path):
    document = cli(
        "scale",
        task_file,
        "--hosts",
        "1,2",
        "--model",
        model_file,
        "--time-limit",
        0.2,
        "-o",
        tmp_path / "plans",
        "--json",
    ).document
    assert [size["hosts"] for size in document["sizes"]] == [1, 2]
    for size, file in zip(document["sizes"], document["saved"], strict=True):
        plan = sw.Plan.load(file)
        assert plan.task.topology.hosts == size["hosts"]
        assert size["bound_ms"] <= size["step_ms"] == plan.cost.step_ms
        assert size["samples_per_second"] <= size["most_samples_per_second"]
        assert size["cost_per_million"] is None


def test_a_proof_speaks_of_the_clusters_that_were_named(cli, model_file, tmp_path):
    slow = sw.Topology(1, 2, "cpu", inter_latency_ms=1e3)
    sw.Task([sw.Table(f"t{index}", 1000, 16) for index in range(4)], slow, 64).save(tmp_path / "task.yaml")
    options = ("--hosts", "1,2", "--model", model_file, "--time-limit", 0.2)
    outcome = cli("scale", tmp_path / "task.yaml", *options)
    assert "no plan on a larger one of these clusters is faster than that on 1 × 2 cpu" in " ".join(outcome.out.split())
    assert "the bounds hold over all plans that TorchRec trains" in outcome.out
    document = cli("scale", tmp_path / "task.yaml", *options, "--json").document
    assert document["no_faster_than_devices"] == 2
    assert [size["bound_scope"] for size in document["sizes"]] == ["torchrec", "torchrec"]


def test_other_devices_by_preset(cli, task_file):
    document = cli(
        "scale",
        task_file,
        "--hosts",
        "1",
        "--devices",
        "h100-8,a100-8",
        "--batch-per-device",
        64,
        "--time-limit",
        0.2,
        "--json",
    ).document
    assert [size["device"] for size in document["sizes"]] == ["h100", "a100"]
    assert [size["batch_size"] for size in document["sizes"]] == [512, 512]


def test_no_plan_on_any_cluster_is_a_failure(cli, model_file, tmp_path):
    sw.Task([sw.Table("t", 1_000_000, 64)], sw.Topology(1, 2, "cpu", "1 MB"), 64).save(tmp_path / "task.yaml")
    options = ("--model", model_file, "--price", "cqu=1")
    outcome = cli("scale", tmp_path / "task.yaml", "--hosts", "1,2", *options)
    assert outcome.code == 1
    assert "1 × 2 cpu: " in outcome.out
    assert "warning: no cluster has devices of cqu" in outcome.err
