from dataclasses import replace

import pytest

from shardwright.cost import PublishedModel, cost_model_for
from shardwright.errors import InvalidInput
from shardwright.report import bottlenecks, entry_of, report_page
from shardwright.report.entry import distinct_names
from shardwright.sharding import Plan
from tests.unit.report.plans import mixed_plan


def test_a_plan_with_its_own_model_needs_no_note():
    entry = entry_of(mixed_plan(), "mixed")
    assert entry.notes == ()
    assert entry.marginals.cost_model == cost_model_for("cpu").name


def test_a_plan_without_a_cost_is_scored_and_says_so():
    plan = mixed_plan()
    entry = entry_of(replace(plan, cost=None, cost_model=""), "mixed")
    assert entry.cost == plan.cost
    assert entry.notes == (f"The plan held no predicted cost; it was scored with {plan.cost_model} for this report.",)


def test_shares_by_another_model_are_said_to_be():
    entry = entry_of(mixed_plan(), "mixed", cost_model=PublishedModel("h100"))
    assert "Shares of tables are by cost model h100/published" in entry.notes[0]
    assert entry.cost == mixed_plan().cost


def other_device(plan: Plan) -> Plan:
    task = replace(plan.task, topology=replace(plan.task.topology, device="abacus"))
    return replace(plan, task=task)


def test_without_a_model_for_the_device_shares_are_left_out():
    entry = entry_of(other_device(mixed_plan()), "mixed")
    assert entry.marginals is None
    assert "no cost model for device 'abacus'" in entry.notes[0]
    assert all(one.tables == () for one in bottlenecks(entry))
    assert '"cells":null' in report_page([entry])


def test_without_a_model_and_without_a_cost_there_is_nothing_to_show():
    with pytest.raises(InvalidInput, match="no cost model for device 'abacus'"):
        entry_of(replace(other_device(mixed_plan()), cost=None), "mixed")
    given = entry_of(replace(other_device(mixed_plan()), cost=None), "mixed", cost_model=cost_model_for("cpu"))
    assert given.cost == mixed_plan().cost


def test_names_are_made_distinct():
    assert distinct_names(["plan", "other", "plan"]) == ["plan", "other", "plan (2)"]
