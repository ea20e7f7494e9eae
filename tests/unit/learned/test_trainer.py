"""Trainings of every kind of policy: equal seeds learn the same bits, whole or stopped; a failure leaves the state saved."""

from dataclasses import replace

import pytest

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.learned.options import PricedAutoShard, PricedDreamShard
from shardwright.learned.records import TrainingRecord
from shardwright.learned.trainer import learn
from shardwright.learned.worlds import SimulatedWorld
from shardwright.task import Constraints, TableConstraint
from tests.kills import DiesAfter, Killed, same_weights
from tests.unit.learned.autoshard.made import QUICK, FailsAt, simulated, varied_task
from tests.unit.learned.dreamshard.policies import BRIEF, training_set
from tests.unit.learned.priced.made import mixed_task, models

pytestmark = pytest.mark.usefixtures("one_thread")

PRICED_TASKS, PRICES = [mixed_task(8, 2), mixed_task(12, 4)], SimulatedWorld(models()["h200"], (models()["cpu"],))
OF_PRICES = {"rounds": 3, "tasks": 2, "episodes": 3, "lag": 2}
TRAININGS = {
    "autoshard": ([varied_task(seed) for seed in range(3)], simulated(), QUICK),
    "dreamshard": (training_set(5), simulated(), BRIEF),
    "priced autoshard": (PRICED_TASKS, PRICES, PricedAutoShard(**OF_PRICES)),
    "priced dreamshard": (PRICED_TASKS, PRICES, PricedDreamShard(**OF_PRICES)),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_killed_training_resumes_to_the_same_bits(name, tmp_path):
    tasks, world, options = TRAININGS[name]
    path = tmp_path / "state.safetensors"
    whole = learn(tasks, world, options)
    with pytest.raises(Killed):
        learn(tasks, world, options, record=DiesAfter(1), checkpoint=path)
    for rounds in (options.rounds - 1, 0):  # the rest, then none
        record = TrainingRecord()
        assert same_weights(learn(tasks, world, options, record=record, checkpoint=path), whole)
        assert len(record.rows) == rounds
    assert not same_weights(learn(tasks, world, replace(options, seed=1)), whole)


@pytest.mark.parametrize(
    ("call", "nan", "reason"), [(1, False, "the machine is gone"), (2, True, "NaN or infinite ms")]
)
@pytest.mark.parametrize("name", ["autoshard", "dreamshard"])
def test_a_training_whose_world_failed_goes_on(name, call, nan, reason, tmp_path):
    tasks, world, options = TRAININGS[name]
    path = tmp_path / "state.safetensors"
    with pytest.raises(
        ShardwrightError, match=rf"{call} of {options.rounds} stopped.*{reason}.*saved in .*{path.name}"
    ):
        learn(tasks, FailsAt(call, nan), options, checkpoint=path)
    assert same_weights(learn(tasks, world, options, checkpoint=path), learn(tasks, world, options))


@pytest.mark.parametrize("name", TRAININGS)
def test_nothing_to_learn_from_is_bad_input(name):
    _, world, options = TRAININGS[name]
    task = mixed_task(2, 2)
    everywhere = {table.name: TableConstraint(sharding_types=("data_parallel",)) for table in task.tables}
    settled = replace(task, constraints=Constraints(everywhere))
    for tasks, said in (([], "the training set has no task"), ([settled], "none of the 1 training tasks")):
        with pytest.raises(InvalidInput, match=said):
            learn(tasks, world, options)


def test_a_reward_that_is_not_a_number_stops():
    tasks, world, options = TRAININGS["dreamshard"]
    with pytest.raises(ShardwrightError, match="became NaN.*no checkpoint was named"):
        learn(tasks, world, replace(options, cost_rate=1e30))
