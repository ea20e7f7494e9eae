from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.errors import InfeasibleTask
from shardwright.search.no_way import no_way
from shardwright.testing.model import SimpleCostModel

MODEL = SimpleCostModel()
TABLES = [sw.Table("a", 100_000, 64, 10.0), sw.Table("b", 20_000, 64, 3.0)]
LONE_HOSTS, HOSTS = sw.Topology(4, 1, memory="1 GB"), sw.Topology(2, 8, memory="1 GB")


@pytest.mark.parametrize("runtime", ["torchrec", "shardwright"])
@pytest.mark.parametrize(
    ("topology", "limits", "stated"),
    [
        (LONE_HOSTS, {"sharding_types": ["table_row_wise"]}, "sharding_types ['table_row_wise']"),
        (LONE_HOSTS, {"sharding_types": ["grid"]}, "sharding_types ['grid']"),
        (HOSTS, {"sharding_types": ["grid"], "max_shards": 4}, "sharding_types ['grid'], max_shards 4"),
        (HOSTS, {"sharding_types": ["table_row_wise"], "devices": [0, 8]}, "['table_row_wise'], devices [0, 8]"),
        (HOSTS, {"sharding_types": ["column_wise"], "min_columns": 64}, "['column_wise'], min_columns 64"),
    ],
)
def test_limits_that_no_memory_meets_are_named_with_the_types_that_would_do(topology, limits, stated, runtime):
    task = sw.Task(TABLES, topology, 64, constraints=sw.Constraints({"a": sw.TableConstraint(**limits)}))
    with pytest.raises(InfeasibleTask) as caught:
        sw.plan(task, strategy="certified", cost_model=MODEL, runs_on=runtime)
    message = str(caught.value)
    assert "no way is known to shard table 'a' for " in message
    assert f"{stated}: allow table_wise" in message
    named = message.split(": allow ")[1].split(", which", maxsplit=1)[0].replace(" or ", ", ").split(", ")
    for kind in named:
        wider = sw.Constraints({"a": sw.TableConstraint(**{**limits, "sharding_types": [kind]})})
        plan = sw.plan(replace(task, constraints=wider), strategy="certified", cost_model=MODEL, runs_on=runtime)
        assert plan.sharding_type("a") == kind


def test_a_lack_of_memory_is_not_laid_to_constraints():
    limits = sw.Constraints({"a": sw.TableConstraint(sharding_types=["table_wise"])})
    task = sw.Task(TABLES, replace(HOSTS, memory="20 MB"), 64, constraints=limits)
    assert no_way(task, "torchrec", MODEL) is None
    with pytest.raises(InfeasibleTask, match="needs 26"):
        sw.plan(task, cost_model=MODEL)


@pytest.mark.parametrize(
    ("table", "limits", "runtime", "says"),
    [
        (sw.Table("a", 1000, 6), {"devices": [0, 1]}, "torchrec", "under devices [0, 1]: relax these limits"),
        (sw.Table("a", 1000, 6), {"devices": [0], "max_shards": 1}, "torchrec", "max_shards 1: relax these limits"),
        (sw.Table("a", 1000, 64, pooled=False), {"sharding_types": ["column_wise"], "min_columns": 64}, "torchrec",
         "min_columns 64: allow table_wise or row_wise, which"),
    ],
)  # fmt: skip
def test_only_types_that_the_runtime_trains_are_offered(table, limits, runtime, says):
    task = sw.Task([table], sw.Topology(2, 2), 64, constraints=sw.Constraints({"a": sw.TableConstraint(**limits)}))
    assert says in (no_way(task, runtime, MODEL) or "")


def test_the_other_runtime_is_asked_all_the_same():
    limits = sw.Constraints({"a": sw.TableConstraint(devices=[0], max_shards=1)})
    plan = sw.plan(sw.Task([sw.Table("a", 1000, 6)], sw.Topology(2, 2), 64, constraints=limits), cost_model=MODEL)
    assert plan.runs_on == ("shardwright",)
