import json
from dataclasses import replace

import pytest

from shardwright.cost import PublishedModel, cost_model_for
from shardwright.errors import InvalidInput
from shardwright.report import MeasuredTimes, bottlenecks, entry_of, not_comparable, read_measured, report_page
from shardwright.report.document import document
from shardwright.report.entry import Entry, renamed
from shardwright.sharding import Plan
from tests.unit.report.plans import mixed_plan


def test_a_plan_with_its_own_model_needs_no_note():
    entry = entry_of(mixed_plan(), "mixed")
    assert entry.notes == ()
    assert entry.marginals.cost_model == cost_model_for("cpu").name


def test_a_plan_without_a_cost_is_scored_and_marked():
    plan = mixed_plan()
    entry = entry_of(replace(plan, cost=None, cost_model=""), "mixed")
    assert entry.cost == plan.cost
    assert entry.notes == (f"The plan held no predicted cost; it was scored with {plan.cost_model} for this report.",)


def test_shares_by_another_model_are_marked():
    entry = entry_of(mixed_plan(), "mixed", cost_model=PublishedModel("h100"))
    assert "Shares of tables are by cost model h100/published" in entry.notes[0]
    assert entry.cost == mixed_plan().cost


def other_device(plan: Plan) -> Plan:
    task = replace(plan.task, topology=replace(plan.task.topology, device="abacus"))
    return replace(plan, task=task, cost_model="abacus/unknown")


def test_without_a_model_for_the_device_shares_are_left_out():
    entry = entry_of(other_device(mixed_plan()), "mixed")
    assert entry.marginals is None
    assert "no cost model for device 'abacus'" in entry.notes[0]
    assert all(bottleneck.tables == () for bottleneck in bottlenecks(entry))
    assert '"cells":null' in report_page([entry])


def test_without_a_model_and_without_a_cost_there_is_nothing_to_show():
    with pytest.raises(InvalidInput, match="no cost model for device 'abacus'"):
        entry_of(replace(other_device(mixed_plan()), cost=None), "mixed")
    given = entry_of(replace(other_device(mixed_plan()), cost=None), "mixed", cost_model=cost_model_for("cpu"))
    assert given.cost == mixed_plan().cost


def test_names_are_made_distinct():
    entries = [Entry(name, mixed_plan()) for name in ("plan", "other", "plan")]
    assert [entry.name for entry in renamed(entries)] == ["plan", "other", "plan (2)"]


def verified(plan):
    """Output of `shardwright verify --json`, with kernels a tenth slower than predicted."""
    return {
        "plan": "plan.json",
        "tolerance": None,
        "devices": [
            {
                "rank": device.rank,
                "predicted_forward_ms": device.forward_ms,
                "predicted_backward_ms": device.backward_ms,
                "measured_forward_ms": 1.1 * device.forward_ms,
                "measured_backward_ms": 1.1 * device.backward_ms,
            }
            for device in plan.cost.devices
        ],
    }


@pytest.fixture
def saved(tmp_path):
    def write(document):
        path = tmp_path / "measured.json"
        path.write_text(json.dumps(document))
        return path

    return write


def test_output_of_verify_is_read(saved):
    plan = mixed_plan()
    times = read_measured(saved(verified(plan)), plan)
    assert times.forward_ms == pytest.approx([1.1 * device.forward_ms for device in plan.cost.devices])
    assert times.compute_ms == pytest.approx(1.1 * plan.cost.compute_ms)
    assert times.device is None
    assert read_measured(saved({**verified(plan), "measured_on": "h200"}), plan).device == "h200"


def test_times_of_two_devices_are_not_compared():
    text = "predicted for cpu, measured on h200: the times differ because the devices do"
    assert not_comparable("cpu", "h200") == text
    entry = entry_of(mixed_plan(), "plan", measured=MeasuredTimes((1.0,) * 4, (2.0,) * 4, "h200"))
    assert entry.notes == (f"Kernels are {text}.",)
    (shown,) = document([entry])["plans"]
    assert (shown["measured"][0], shown["notComparable"]) == ([1] * 4, text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda document: document["devices"].pop(), "lists 3 devices, the plan has ranks 0 to 3"),
        (
            lambda document: document["devices"][1].update(measured_forward_ms=-1.0),
            "devices\\[1\\].measured_forward_ms: Expected `float` >= 0.0",
        ),
        (lambda document: document["devices"][1].update(measured_forward_ms="1"), r"devices\[1\].measured_forward_ms"),
        (lambda document: document["devices"][2].pop("rank"), "the field 'rank' is missing"),
        (lambda document: document.pop("devices"), "holds no kernel times of devices"),
    ],
)
def test_broken_measurements(saved, change, says):
    document = verified(mixed_plan())
    change(document)
    with pytest.raises(InvalidInput, match=says):
        read_measured(saved(document), mixed_plan())
