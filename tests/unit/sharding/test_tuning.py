import json
from dataclasses import replace

import pytest

from shardwright.errors import InvalidInput
from shardwright.report.document import tuning_data
from shardwright.sharding import Plan
from shardwright.sharding.tuning import Trial, Tuning
from tests.unit.report.plans import mixed_plan


def tuned_plan(**fields) -> Plan:
    trials = (Trial(0, "certified", 1.0, 1.3, True), Trial(1, "2 moves", 1.25, 1.2, True))
    found = Tuning(1.2, (1.1, 1.3), 1.3, (1.25, 1.4), 1.15, (0.5,) * 4, (0.7,) * 4, trials)
    return replace(mixed_plan(), tuning=replace(found, **fields))


def test_a_plan_file_keeps_what_was_measured(tmp_path):
    path = tmp_path / "plan.json"
    tuned_plan().save(path)
    assert Plan.load(path).tuning == tuned_plan().tuning
    assert tuned_plan().tuning.above_floor == pytest.approx(1.2 / 1.15 - 1)
    mixed_plan().save(path)
    assert Plan.load(path).tuning is None
    assert "tuning" not in json.loads(path.read_text())


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("measured_ms", -1.0, r"tuning\.measured_ms is -1"),
        ("floor_ms", 1e200, r"tuning\.floor_ms is 1e\+200"),
        ("interval_ms", [2.0, 1.0], "two times in order"),
        ("forward_ms", [1.0], "one for each of 4 devices"),
        ("measured_ms", "fast", "measured_ms"),
        ("spare", 1, "spare"),
        ("history", [{"round": -1, "name": "x", "promised_ms": 1, "measured_ms": 1, "accepted": True}], "round -1"),
        (
            "history",
            [{"round": 1, "name": "\x1b[2J", "promised_ms": 1, "measured_ms": 1, "accepted": True}],
            "printable",
        ),
    ],
)
def test_a_damaged_tuning_is_refused(tmp_path, field, value, said):
    path = tmp_path / "plan.json"
    tuned_plan().save(path)
    document = json.loads(path.read_text())
    document["tuning"][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=said):
        Plan.load(path)


def test_a_report_has_every_trial():
    data = tuning_data(tuned_plan())
    assert data["trials"] == [["certified", 0, 1.0, 1.3, 1], ["2 moves", 1, 1.25, 1.2, 1]]
    assert data["intervalMs"] == [1.1, 1.3]
    assert tuning_data(mixed_plan()) is None
