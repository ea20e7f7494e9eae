"""AutoShard as a strategy: conformance, constraints, memory, tasks unlike those it was trained on, bad policy files."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import InfeasibleTask
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.autoshard import AutoShard
from shardwright.learned.autoshard.network import (
    AutoShardNetwork,
    EncodedTasks,
    Trajectory,
    costliest_first,
    go_through,
)
from shardwright.learned.autoshard.policy import SHAPES, AutoShardWeights, Setting, decode
from shardwright.learned.autoshard.strategy import TRIES, placed
from shardwright.learned.environment import Environment, PlacementBatch
from shardwright.learned.policy_files import load_policy, save_policy
from shardwright.sharding.checking import check_plan
from shardwright.task import Constraints, TableConstraint, Topology
from shardwright.testing import check_strategy
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import conformance_tasks, constrained_task, impossible_task
from tests.unit.learned.autoshard.made import (
    learned,
    random_network,
    random_policy,
    saved_policy,
    two_sizes,
    varied_task,
)


def saved(folder, seed: int = 0) -> AutoShard:
    """The strategy with random weights."""
    path = folder / f"policy-{seed}.safetensors"
    save_policy(random_policy(seed), path)
    return AutoShard(path)


def search(strategy: AutoShard, task, seed: int = 0):
    return strategy.search(task, SimpleCostModel(), seed=seed, deadline=None)


@pytest.mark.parametrize("seed", range(3))
def test_any_policy_conforms(tmp_path, seed):
    check_strategy(saved(tmp_path, seed))


def test_a_learned_policy_conforms(tmp_path):
    path = tmp_path / "policy.safetensors"
    save_policy(learned(), path)
    check_strategy(AutoShard(path))


def test_a_policy_file_records_its_training_and_plans_the_same_after_a_round_trip(tmp_path):
    policy = learned()
    path = tmp_path / "policy.safetensors"
    save_policy(policy, path)
    again = load_policy(path, "autoshard")
    assert set(again.weights) == set(SHAPES)
    assert again.metadata["world"] == "simulated: testing/simple"
    assert again.metadata["tasks"].startswith("6 tasks of 10 tables on 3 devices")
    arrays = PlacementArrays.of(varied_task(9))
    direct = placed(arrays, AutoShardWeights(policy), 0, None)
    assert search(AutoShard(path), varied_task(9)).shards == arrays.plan(direct, "autoshard", 0).shards


@pytest.mark.parametrize(("tables", "devices"), [(1, 1), (5, 16), (60, 2), (40, 9)])
def test_tasks_of_any_size_are_planned(tmp_path, tables, devices):
    """The policy was trained on 10 tables and 3 devices."""
    path = tmp_path / "policy.safetensors"
    save_policy(learned(), path)
    task = varied_task(4, tables, devices)
    check_plan(task, search(AutoShard(path), task).shards)


def test_a_task_whose_tables_are_all_settled_needs_no_choice(tmp_path):
    task = varied_task(0, 2, 2)
    everywhere = {table.name: TableConstraint(sharding_types=("data_parallel",)) for table in task.tables}
    task = replace(task, constraints=Constraints(everywhere))
    plan = search(saved(tmp_path), task)
    assert [shard.devices for shard in plan.shards] == [(0, 1), (0, 1)]


def test_ranks_do_not_matter(tmp_path):
    """Devices of other memory in another order: the same tables lie on the device of the same memory."""
    strategy = saved(tmp_path, 1)
    task = varied_task(3, 12, 4)
    memory = [int(1e9), int(2e9), int(3e9), int(4e9)]
    placements = set()
    for shift in range(4):
        rolled = memory[shift:] + memory[:shift]
        plan = search(strategy, replace(task, topology=Topology(devices_per_host=4, memory=rolled)))
        placements.add(frozenset((shard.table, rolled[shard.devices[0]]) for shard in plan.shards))
    assert len(placements) == 1


def test_memory_so_tight_that_the_own_order_fails_is_still_filled(tmp_path):
    """The costly tables are the smaller ones: placed first, on one device, they leave no room for the large ones."""
    task = two_sizes()
    arrays = PlacementArrays.of(task)
    failed = 0
    for seed in range(12):
        weights = AutoShardWeights(random_policy(seed))
        setting = Setting.of(arrays, weights)
        failed += decode(setting, weights, setting.order)[0] >= 0
        check_plan(task, search(saved(tmp_path, seed), task).shards)
    assert failed > 0


def test_a_task_without_room_is_infeasible_with_numbers_and_a_remedy(tmp_path):
    with pytest.raises(
        InfeasibleTask, match=rf"needs .*KB: in the last of {TRIES} tries .* at most .* left.*allow column_wise"
    ):
        search(saved(tmp_path), impossible_task())


def test_a_deadline_ends_the_tries(tmp_path):
    with pytest.raises(InfeasibleTask, match="in the last of 1 tries"):
        saved(tmp_path).search(impossible_task(), SimpleCostModel(), seed=0, deadline=0.0)


def in_torch(
    network: AutoShardNetwork, arrays: PlacementArrays, order: np.ndarray, assignment: np.ndarray
) -> torch.Tensor:
    """`(n, d)` logits of each unit, by torch in double precision, when the units go where `assignment` says, in this order."""
    network = network.double()
    batch = PlacementBatch.of([arrays])
    batch = replace(batch, features_ebf=batch.features_ebf.double(), fixed_ecf=batch.fixed_ecf.double())
    order = torch.from_numpy(order)[None]
    environment = Environment(batch, order)
    masks, memory, actions = [], [], []
    while not environment.done:
        masks.append(environment.mask())
        memory.append(environment.used_ed.double() / batch.memory_ed)
        actions.append(torch.tensor([int(assignment[int(environment.current_e)])]))
        environment.step(actions[-1])
    played = Trajectory(
        batch, order, torch.stack(actions), torch.stack(masks), torch.stack(memory),
        torch.zeros(len(arrays), 1), environment.assignment_eu, environment.excess_e,
    )  # fmt: skip
    logits = torch.empty(len(arrays), arrays.devices, dtype=torch.float64)
    logits[order[0]] = go_through(network, played)[0][:, 0].detach()
    return logits


def compare(seed: int, arrays: PlacementArrays, published: bool = False) -> None:
    arrays = replace(
        arrays,
        features=arrays.features.astype(np.float32).astype(np.float64),  # torch's environment holds single precision
        fixed_features=arrays.fixed_features.astype(np.float32).astype(np.float64),
    )
    network = random_network(seed, published)
    weights = AutoShardWeights(saved_policy(network, **({"method": "paper"} if published else {})))
    setting = Setting.of(arrays, weights)
    order = setting.order
    logits = np.empty(arrays.allowed.shape)
    unit, assignment = decode(setting, weights, order, logits=logits)
    if unit >= 0:
        return
    expected = in_torch(network, arrays, order, assignment).numpy() - float(network.policy[-1].bias.detach())
    np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=1e-7)
    chosen = logits[np.arange(len(arrays)), assignment]
    np.testing.assert_allclose(chosen, expected.max(axis=1), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 14), devices=st.integers(1, 7), published=st.booleans())
def test_logits_are_those_of_torch(seed, tables, devices, published):
    compare(seed, PlacementArrays.of(varied_task(seed % 1000, tables, devices)), published)


def test_logits_are_those_of_torch_under_constraints_and_tight_memory():
    for seed, task in enumerate(conformance_tasks().values()):
        compare(seed, PlacementArrays.of(task))


def test_the_order_is_that_of_torch():
    for seed in range(5):
        network, arrays = random_network(seed), PlacementArrays.of(varied_task(seed, 20, 3))
        order = Setting.of(arrays, AutoShardWeights(saved_policy(network))).order
        batch = PlacementBatch.of([arrays])
        assert costliest_first(network, batch, EncodedTasks.of(network, batch))[0].tolist() == order.tolist()


def test_the_state_matters():
    """The same unit, on the same empty devices, gets other logits as the last of a task than as the first."""
    arrays = PlacementArrays.of(varied_task(0, 6, 3))
    weights = AutoShardWeights(random_policy(0))
    setting = Setting.of(arrays, weights)
    order = setting.order
    one, other = np.empty(arrays.allowed.shape), np.empty(arrays.allowed.shape)
    decode(setting, weights, order, logits=one)
    decode(setting, weights, order[::-1].copy(), logits=other)
    assert np.abs(one - other).max() > 1e-4


def test_equal_devices_are_taken_by_rank_and_roomier_ones_first():
    arrays = PlacementArrays.of(varied_task(0, 1, 4))
    weights = AutoShardWeights(random_policy(0))
    setting = Setting.of(arrays, weights)
    order = setting.order
    assert decode(setting, weights, order)[1].tolist() == [0]
    roomier = replace(setting, arrays=replace(arrays, memory=arrays.memory + np.array([0, 0, 1, 0])))
    assert decode(roomier, weights, order)[1].tolist() == [2]


def test_large_noise_decides():
    arrays = PlacementArrays.of(constrained_task())
    weights = AutoShardWeights(random_policy(0))
    setting = Setting.of(arrays, weights)
    order = setting.order
    noise = np.zeros(arrays.allowed.shape)
    wanted = arrays.allowed.argmax(axis=1)
    noise[np.arange(len(arrays)), wanted] = 1e6
    free = replace(setting, arrays=replace(arrays, rivals=np.zeros_like(arrays.rivals)))
    _, assignment = decode(free, weights, order, noise)
    assert assignment.tolist() == wanted.tolist()
