import pytest

import shardwright as sw

TABLES = "tables: [{name: user, rows: 1M, dim: 64}, {name: item, rows: 40k, dim: 32, pooling: 20}]\n"


@pytest.fixture
def planned(cli, tmp_path):
    """Runs `plan` on a file of this content; returns the plan and the messages."""

    def run(content, *options):
        file, output = tmp_path / "task.yaml", tmp_path / "plan.json"
        file.write_text(content)
        outcome = cli("plan", file, *options, "-o", output, "--strategy", "greedy")
        assert outcome.code == 0, outcome.err
        return sw.Plan.load(output), outcome

    return run


def test_a_tables_file_and_a_cluster_by_flags_are_a_task(planned):
    plan, outcome = planned(TABLES, "--devices", "H100-8", "--hosts", "2", "--batch", "64Ki", "--reserve", "20%")
    topology = plan.task.topology
    assert (topology.hosts, topology.devices, topology.device, plan.task.batch_size) == (2, 16, "h100", 65536)
    assert topology.memory_bytes[0] == 64_000_000_000  # 80% of the card, not of the memory that the preset leaves
    assert "16.0 GB of each device's 80.0 GB are left free" in outcome.err
    assert "of 64.0 GB" in outcome.out


def test_flags_replace_what_the_task_says(planned):
    task = "batch_size: 64\ntopology: {preset: h200-8, memory: 100 GB}\n" + TABLES
    plan, _ = planned(task)
    assert plan.task.topology.memory_bytes == (100_000_000_000,) * 8
    plan, _ = planned(task, "--hosts", "2", "--reserve", "25 GB")
    assert plan.task.topology.memory_bytes == (75_000_000_000,) * 16
    plan, outcome = planned(task, "--devices", "a100-8")
    assert plan.task.topology == sw.Topology.preset("a100-8")
    assert "15% of each device are left free" in outcome.err
