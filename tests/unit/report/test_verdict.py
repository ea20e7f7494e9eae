import re
from dataclasses import replace

import pytest

from shardwright.report import Change, Entry, entry_of, verdict
from shardwright.sharding import BOUND_SCOPES, DeviceCost, Plan, PlanCost, Shard
from shardwright.task import Table, Task, Topology
from tests.unit.report.plans import hostile_plan

SCOPE = BOUND_SCOPES["blocks"]
TASK = Task((Table("a", 10_000, 8), Table("b", 10_000, 8)), Topology(1, 2, "h100", "4 MB"), 64)


def entry(*phases, bound_ms=None, changes=()):
    """A plan of two devices with these times of the four phases: one for both devices, or one for each."""
    times = [phase if isinstance(phase, tuple) else (phase, phase) for phase in phases]
    devices = tuple(DeviceCost(rank, *(phase[rank] for phase in times), memory_bytes=0) for rank in range(2))
    shards = (Shard("a", (0, 10_000), (0, 8), (0,)), Shard("b", (0, 10_000), (0, 8), (1,)))
    return Entry("plan", Plan(TASK, shards, cost=PlanCost(devices), bound_ms=bound_ms), changes=tuple(changes))


@pytest.mark.parametrize(
    ("report_entry", "waits"),
    [
        (entry(1.0, 1.0, 1.0, 7.0), "80% of a step is kernels, most of it backward and optimizer"),
        (entry(3.0, 1.0, 1.0, 1.0), "67% of a step is kernels, most of it forward lookup"),
        (entry(1.0, 4.0, 4.0, 1.0), "80% of a step is collectives"),
        (
            entry(1.0, 4.0, 4.0, 1.0, changes=[Change("latency", "links without latency", 0.5)]),
            "80% of a step is collectives, most of it latency",
        ),
        (
            entry(1.0, 4.0, 4.0, 1.0, changes=[Change("links", "twice the bandwidth between hosts", 0.3)]),
            "80% of a step is collectives, most of it bytes between hosts",
        ),
        (
            entry((8.0, 0.0), 1.0, 1.0, (0.0, 2.0)),
            "A device waits 42% of a step for slower ones on average, most of it in forward lookup for device 0",
        ),
        (
            entry((1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (1.1, 0.0)),
            "A device waits 50% of a step for slower ones on average, the largest part of it in backward and optimizer for device 0",
        ),
    ],
)
def test_the_verdict_names_the_phase_that_a_step_waits_for(report_entry, waits):
    assert verdict(report_entry).startswith(f"{waits}, and the fullest device uses 9% of its memory. ")


@pytest.mark.parametrize(
    ("bound_ms", "says"),
    [
        (9.5, f" By the bound {SCOPE}, no other plan saves more than 5.0%."),
        (4.0, f" By the bound {SCOPE}, another plan may save up to 60%."),
        (None, " Plan with the default strategy for a bound on what another plan saves."),
        (10.5, ""),  # cut in ways that the bound does not cover
    ],
)
def test_the_verdict_says_how_much_the_bound_leaves(bound_ms, says):
    assert verdict(entry(5.0, 0.5, 0.5, 4.0, bound_ms=bound_ms)).endswith(f"of its memory.{says}")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([], f"By the bound {SCOPE}, no other plan saves more than 5.0%."),
        ([Change("plan", "'a' on device 1", 0.03)], "'a' on device 1 would save 3% of a step."),
        ([Change("plan", "'a' on device 1", 0.01)], f"By the bound {SCOPE}, no other plan saves more than 5.0%."),
        (
            [Change("batch", "a batch of 128", 0.4), Change("plan", "replicas of 'a' on all devices", 0.04)],
            "Replicas of 'a' on all devices would save 4% of a step; a batch of 128 would take 40% less time a sample.",
        ),
        (
            [Change("memory", "replicas of 'a' on all devices, which needs 3.0 MB more on a device,", 0.2)],
            "no other plan saves more than 5.0%; replicas of 'a' on all devices, which needs 3.0 MB more on a device, would save 20% of a "
            "step.",
        ),
        (
            [Change("links", "twice the bandwidth inside a host", 0.3), Change("batch", "a batch of 128", 0.1)],
            "no other plan saves more than 5.0%; a batch of 128 would take 10% less time a sample.",
        ),
        (
            [Change("links", "twice the bandwidth inside a host", 0.3), Change("batch", "a batch of 128", 0.04)],
            "no other plan saves more than 5.0%; twice the bandwidth inside a host would save 30% of a step.",
        ),
        ([Change("links", "twice the bandwidth inside a host", 0.09)], "no other plan saves more than 5.0%."),
        ([Change("latency", "links without latency", 0.3)], "no other plan saves more than 5.0%."),
    ],
)
def test_the_change_that_pays_most(changes, says):
    assert verdict(entry(5.0, 0.5, 0.5, 4.0, bound_ms=9.5, changes=changes)).endswith(says)


def test_no_time_is_predicted():
    assert verdict(entry(0.0, 0.0, 0.0, 0.0)) == "No time is predicted for a step."


def test_it_is_two_sentences_whatever_tables_are_called():
    plan = hostile_plan()
    slow = replace(plan.cost.devices[1], forward_ms=100.0)
    text = verdict(entry_of(replace(plan, cost=PlanCost((plan.cost.devices[0], slow))), "hostile"))
    assert len(text) < 500
    assert f"'{'long' * 9}lon…'" in text
    assert re.fullmatch(r".*of its memory\. .*\.", text)
