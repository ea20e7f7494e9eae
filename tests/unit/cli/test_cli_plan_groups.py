"""`shardwright plan --sharding-group-size`."""

import json

import pytest

import shardwright as sw
from shardwright.errors import counted
from shardwright.task import ShardingGroups

TASK = """
batch_size: 4096
topology: {{hosts: 2, devices_per_host: 2, device: h100, memory: {memory}, intra_bandwidth: 100 GB/s, inter_bandwidth: 5 GB/s}}
tables:
  - {{name: user, rows: 50_000, dim: 32, pooling: 2}}
  - {{name: item, rows: 20_000, dim: 64, pooling: 10}}
  - {{name: shop, rows: 1_000, dim: 16, pooling: 4}}
"""
TOTAL = 50_000 * (32 * 4 + 4) + 20_000 * (64 * 4 + 4)


@pytest.fixture
def task(tmp_path):
    def write(memory="100 MB"):
        path = tmp_path / "cluster.yaml"
        path.write_text(TASK.format(memory=memory))
        return path

    return write


def plan(cli, file, *more):
    return cli("plan", file, "--runs-on", "torchrec", "--time-limit", 0.3, *more)


def test_every_size_is_shown_and_the_best_is_saved(cli, task, tmp_path):
    file, target = task(), tmp_path / "group.json"
    outcome = plan(cli, file, "--sharding-group-size", "auto", "--sync-interval", "1000", "-o", target)
    assert outcome.code == 0
    rows = {words[0]: words for line in outcome.out.split("predicted ms")[0].splitlines() if (words := line.split())}
    assert [rows[str(size)][1 + (rows[str(size)][1] == "*")] for size in (1, 2, 4)] == ["4", "2", "1"]
    saved_plan = sw.Plan.load(target)
    size = saved_plan.task.topology.devices
    (starred,) = [words for words in rows.values() if len(words) > 1 and words[1] == "*"]
    assert starred[0] == str(size)
    assert starred[3] == f"{saved_plan.cost.step_ms:.3f}"
    steps = [float(words[3 if words[1] == "*" else 2]) for name, words in rows.items() if name in ("1", "2", "4")]
    assert min(steps) == float(starred[3])
    assert size < 4
    assert saved_plan.task.groups == ShardingGroups(size, 2, 2, sync_interval=1000)
    assert (
        f"one of {4 // size} sharding groups of {counted(size, 'device')}, synchronised every 1000 steps" in outcome.out
    )


def test_a_named_size_and_all_options_reach_the_plan(cli, task, tmp_path):
    target = tmp_path / "group.json"
    outcome = plan(cli, task(), "--sharding-group-size", 2, "--inter-host-allreduce", "--fully-sharded", "-o", target)
    assert outcome.code == 0
    saved_plan = sw.Plan.load(target)
    assert saved_plan.task.groups == ShardingGroups(2, 2, 2, inter_host_allreduce=True, fully_sharded=True)
    assert (saved_plan.task.topology.hosts, saved_plan.task.batch_size) == (1, 2048)
    assert saved_plan.task.topology.memory_bytes[0] == 100_000_000 * 2 // 3
    shown = cli("show", target)
    assert shown.code == 0
    assert "one of 2 sharding groups of 2 devices, synchronised in every step" in shown.out
    assert shown.err == ""  # the shown times are the plan's


def test_json_has_the_plan_and_the_sizes(cli, task, tmp_path):
    outcome = plan(cli, task(TOTAL // 2), "--sharding-group-size", "auto", "--json")
    document = outcome.document
    sizes = {entry["size"]: entry for entry in document["sharding_group_sizes"]}
    assert list(sizes) == [1, 2, 4]
    assert "the tables need" in sizes[1]["why_not"]
    assert sizes[4]["memory_bytes"] == sizes[4]["memory_between_passes_bytes"] <= TOTAL // 2
    assert document["step_ms"] == min(entry["step_ms"] for entry in sizes.values() if entry["step_ms"] is not None)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    assert sw.Plan.load(tmp_path / "plan.json").cost.step_ms == document["step_ms"]


def test_a_size_without_a_plan_shows_the_reason(cli, task):
    shown = plan(cli, task(TOTAL // 2), "--sharding-group-size", "auto")
    assert "groups of 1: the tables need" in shown.out
    named = plan(cli, task(TOTAL // 2), "--sharding-group-size", 1)
    assert named.code == 1
    assert "sharding groups of 1: the tables need" in named.err


def test_the_task_of_a_group_is_planned_as_it_is(cli, task, tmp_path):
    """The task of a group comes from a plan file, and names its groups."""
    plan(cli, task(), "--sharding-group-size", 2, "--sync-interval", 50, "-o", tmp_path / "group.json")
    sw.Plan.load(tmp_path / "group.json").task.save(tmp_path / "group.yaml")
    again = plan(cli, tmp_path / "group.yaml")
    assert "one of 2 sharding groups of 2 devices, synchronised every 50 steps" in again.out
    twice = plan(cli, tmp_path / "group.yaml", "--sharding-group-size", 1)
    assert twice.code == 2
    assert "already that of one group" in twice.err
    other = cli("plan", tmp_path / "group.yaml", "--runs-on", "shardwright")
    assert other.code == 1
    assert "plan for runs_on 'torchrec'" in other.err
