"""Stored results by seed: costs of plans under the bundled model, and errors of a short training.

A change that alters them on purpose writes them anew, and the diff shows by how much:

    python -m tests.golden.test_golden
"""

import json
import os
from pathlib import Path
from tempfile import mkdtemp

import pytest

import shardwright as sw
from shardwright.modelling.training import TrainingOptions, train
from shardwright.workload import public_task, random_task
from tests.unit.modelling.conftest import make_samples

FILE = Path(__file__).parent / "golden.json"
TOLERANCE = 1e-4  # arithmetic differs in the last digits between processors; a changed decision differs by far more
SEARCHED = 0.02  # a long search takes other turns then: its plans differ, their costs hardly do


def tasks() -> dict[str, sw.Task]:
    return {
        "paper, 40 tables on 4": random_task(0, tables=40, devices=4, device="cpu", batch_size=1024),
        "paper, 80 tables on 8": random_task(1, tables=80, devices=8, device="cpu", batch_size=1024),
        "mlperf on 4": public_task(
            "mlperf-dlrm-dcnv2", sw.Topology(devices_per_host=4, memory="4 GB"), scale=0.02, batch_size=1024
        ),
    }


def plan_costs() -> dict[str, dict[str, float]]:
    """Predicted step ms by task and strategy."""
    return {
        what: {name: sw.plan(task, strategy=name, seed=0).cost.step_ms for name in sw.strategy_names(task)}
        for what, task in tasks().items()
    }


def training_errors() -> dict[str, float]:
    """Held-out mean error of 15 epochs on made-up samples, by head."""
    samples = make_samples(300, noise=0.02)
    return {
        head: train(samples, TrainingOptions(head=head, epochs=15)).accuracy.mean_error for head in ("convex", "mlp")
    }


@pytest.fixture(scope="module")
def golden():
    return json.loads(FILE.read_text())


@pytest.mark.slow
def test_plan_costs_are_as_stored(golden):
    predicted = plan_costs()
    assert predicted.keys() == golden["plan_costs"].keys()
    for what, costs in golden["plan_costs"].items():
        for name, stored in costs.items():
            tolerance = SEARCHED if name in ("certified", "dreamshard+") else TOLERANCE
            assert predicted[what].pop(name) == pytest.approx(stored, rel=tolerance), (what, name)
        assert not predicted[what]


def test_training_reaches_what_is_stored(golden):
    """Within a tenth: sums in another order change the path of a training run."""
    assert training_errors() == pytest.approx(golden["training_errors"], rel=0.1)


if __name__ == "__main__":
    os.environ["SHARDWRIGHT_CACHE"] = mkdtemp()  # no model of the user's own
    FILE.write_text(json.dumps({"plan_costs": plan_costs(), "training_errors": training_errors()}, indent=1) + "\n")
