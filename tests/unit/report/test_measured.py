import json

import pytest

from shardwright.errors import InvalidInput
from shardwright.report import read_measured
from tests.unit.report.plans import mixed_plan, row_wise_plan


def verified(plan):
    """What `shardwright verify --json` prints, with kernels a tenth slower than predicted."""
    return {
        "plan": "plan.json",
        "tolerance": None,
        "devices": [
            {
                "rank": one.rank,
                "predicted_forward_ms": one.forward_ms,
                "predicted_backward_ms": one.backward_ms,
                "measured_forward_ms": 1.1 * one.forward_ms,
                "measured_backward_ms": 1.1 * one.backward_ms,
            }
            for one in plan.cost.devices
        ],
    }


@pytest.fixture
def saved(tmp_path):
    def write(document):
        path = tmp_path / "measured.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    return write


def test_what_verify_prints_is_read(saved):
    plan = mixed_plan()
    times = read_measured(saved(verified(plan)), plan)
    assert times.forward_ms == pytest.approx([1.1 * one.forward_ms for one in plan.cost.devices])
    assert times.compute_ms == pytest.approx(1.1 * plan.cost.compute_ms)


def test_a_measurement_of_another_plan_is_refused(saved):
    with pytest.raises(InvalidInput, match="it is a measurement of another plan"):
        read_measured(saved(verified(row_wise_plan())), mixed_plan())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda document: document["devices"].pop(), "lists 3 devices, the plan has ranks 0 to 3"),
        (lambda document: document["devices"][1].update(measured_forward_ms=-1.0), "must not be negative"),
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


def test_what_is_no_json_is_refused(saved):
    with pytest.raises(InvalidInput, match="not JSON"):
        read_measured(saved("rank: 0"), mixed_plan())
