import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import shardwright as sw
from shardwright.cost.score import score
from shardwright.errors import InfeasibleTask, InvalidInput, MissingDependency
from shardwright.learned.arrays import TABLE_FEATURES, PlacementArrays
from shardwright.learned.gym_env import PENALTY, PlacementEnv
from shardwright.learned.worlds import SimulatedWorld
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import conformance_tasks, impossible_task, task_of, tight_task

MODEL = SimpleCostModel()
WORLD = SimulatedWorld(MODEL)


def play(env, choose, **options):
    """All observations, rewards and infos of an episode."""
    observation, info = env.reset(**options)
    steps, done = [(observation, 0.0, info)], False
    while not done:
        observation, reward, done, truncated, info = env.step(choose(env.action_masks()))
        assert not truncated
        steps.append((observation, reward, info))
    return steps


def first(mask):
    return np.int64(mask.argmax())


@pytest.mark.parametrize("reward", ["balance", "step"])
def test_the_checker_of_gymnasium_passes_without_a_warning(reward):
    """Through `gymnasium.make`, as the checker tests less on an environment that has no specification."""
    gymnasium.register("shardwright/Placement-v0", entry_point=PlacementEnv)
    try:
        env = gymnasium.make(
            "shardwright/Placement-v0", tasks=list(conformance_tasks().values()), world=WORLD, reward=reward
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env.unwrapped)
    finally:
        del gymnasium.registry["shardwright/Placement-v0"]


@pytest.mark.parametrize("name", conformance_tasks())
def test_an_episode_within_the_mask_makes_a_valid_plan(name):
    task = conformance_tasks()[name]
    env = PlacementEnv([task], WORLD, reward="balance")
    rng = np.random.default_rng(0)
    for _ in range(5):
        steps = play(env, lambda mask: rng.choice(np.flatnonzero(mask)))
        assert [reward for _, reward, _ in steps[:-1]] == [0.0] * (len(steps) - 1)
        assert len(steps) == len(PlacementArrays.of(task)) + 1
        assert steps[-1][1] != PENALTY
        plan = env.plan("mine", 2)
        plan.check()
        assert (plan.task, plan.strategy, plan.seed) == (task, "mine", 2)


def test_rewards_are_the_degree_of_balance_and_the_gain_over_a_greedy_placement():
    task = task_of(9, 3)
    balance, gain = (PlacementEnv([task], WORLD, reward=reward) for reward in ("balance", "step"))
    for env in (balance, gain):
        rng = np.random.default_rng(1)
        steps = play(env, lambda mask, rng=rng: rng.choice(np.flatnonzero(mask)))
        env.last = steps[-1][1]
    assert balance.plan().shards == gain.plan().shards
    cost = score(task, balance.plan().shards, MODEL)
    kernels = [device.compute_ms for device in cost.devices]
    assert balance.last == pytest.approx(min(kernels) / max(kernels))
    greedy = sw.plan(task, strategy="lookup", cost_model=MODEL)
    assert gain.last == pytest.approx(greedy.cost.step_ms / cost.step_ms - 1)


def test_observations_say_what_lies_where():
    task = conformance_tasks()["constraints of every kind"]
    arrays = PlacementArrays.of(task)
    env = PlacementEnv([task, task_of(3, 6)], WORLD)
    steps = play(env, first, options={"task": 0})
    share = [step[0]["placed"][0] for step in steps]
    assert share == pytest.approx(np.arange(len(arrays) + 1) / len(arrays))
    for (before, _, _), (after, _, info), previous in zip(steps, steps[1:], steps, strict=False):
        changed = np.flatnonzero(np.abs(after["sums"] - before["sums"]).max(axis=1))
        assert changed.tolist() == [int(previous[2]["action_mask"].argmax())]
        np.testing.assert_allclose((after["sums"] - before["sums"]).sum(axis=0), before["unit"], atol=1e-4)
        np.testing.assert_array_equal(after["mask"], info["action_mask"])
        assert before["exists"].tolist() == [1, 1, 1, 1, 0, 0]
    start, end = steps[0][0], steps[-1][0]
    np.testing.assert_allclose(start["used"][:4], arrays.used / arrays.memory, rtol=1e-6)
    used = np.array([env.plan().memory.total[rank] for rank in range(4)]) / arrays.memory
    np.testing.assert_allclose(end["used"][:4], used, rtol=1e-6)
    assert not end["unit"].any()
    assert not end["mask"].any()


def test_units_come_heaviest_first():
    tables = [sw.Table(f"t{pooling}", 1000, 16, pooling=pooling) for pooling in (2.0, 30.0, 7.0)]
    env = PlacementEnv([sw.Task(tables, sw.Topology(devices_per_host=2), 64)], WORLD)
    steps = play(env, first)
    column = TABLE_FEATURES.index("log_pooling")
    poolings = [step[0]["unit"][column] for step in steps[:-1]]
    assert poolings == sorted(poolings, reverse=True)


@pytest.mark.parametrize("action", [3, 5, -4, -1])
def test_an_action_outside_the_mask_ends_the_episode(action):
    env = PlacementEnv([task_of(4, 2), task_of(4, 5)], WORLD)
    env.reset(options={"task": 0})
    assert env.action_masks().tolist() == [True, True, False, False, False]
    _, reward, terminated, truncated, _ = env.step(np.int64(action))
    assert (reward, terminated, truncated) == (PENALTY, True, False)
    with pytest.raises(InvalidInput, match="4 units are not placed"):
        env.plan()


def test_a_dead_end_ends_the_episode():
    env = PlacementEnv([tight_task(), impossible_task()], WORLD, reward="balance")
    assert play(env, first, options={"task": 0})[-1][1] > 0
    assert play(env, first, options={"task": 1})[-1][1] == PENALTY


def test_the_same_seed_draws_the_same_tasks():
    tasks = [task_of(count, 2) for count in range(1, 9)]
    drawn = []
    for seed in (0, 0, 1):
        env = PlacementEnv(tasks, WORLD, seed)
        drawn.append([len(play(env, first)) for _ in range(12)])
    assert drawn[0] == drawn[1] != drawn[2]


def test_test_tasks_are_seen_as_training_tasks_are():
    train = PlacementEnv([task_of(9, 4), task_of(5, 2)], WORLD)
    test = PlacementEnv([task_of(5, 2)], WORLD, like=train)
    seen, again = train.reset(options={"task": 1})[0], test.reset()[0]
    for name, part in seen.items():
        np.testing.assert_array_equal(part, again[name])
    with pytest.raises(InvalidInput, match="a task has 5 devices, but the environment passed as like has 4"):
        PlacementEnv([task_of(3, 5)], WORLD, like=train)


def test_bad_arguments_are_refused():
    settled = {"table_0": sw.TableConstraint(sharding_types=("data_parallel",))}
    nothing = task_of(1, 2, constraints=sw.Constraints(settled))
    with pytest.raises(InvalidInput, match="tasks is empty"):
        PlacementEnv([], WORLD)
    with pytest.raises(InvalidInput, match="task 1 has nothing to place"):
        PlacementEnv([task_of(2, 2), nothing], WORLD)
    with pytest.raises(InfeasibleTask, match="task 0: the greedy placement .* or take reward='balance'"):
        PlacementEnv([impossible_task()], WORLD)
    with pytest.raises(InvalidInput, match="task is 3, must be a whole number from 0 to 0"):
        PlacementEnv([task_of(2, 2)], WORLD).reset(options={"task": 3})


def test_without_gymnasium_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "shardwright.learned.gym_env")
    with pytest.raises(MissingDependency, match=r"pip install 'shardwright\[learn\]'"):
        import shardwright.learned.gym_env  # noqa: F401
