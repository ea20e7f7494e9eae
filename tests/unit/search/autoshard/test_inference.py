"""The compiled greedy computes what the torch networks compute."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.search.autoshard.inference import decode
from shardwright.search.autoshard.network import AutoShardNetwork, exported
from shardwright.search.autoshard.rollout import Encoded, Trajectory, costliest_first, go_through
from shardwright.search.autoshard.strategy import _setting
from shardwright.search.autoshard.weights import AutoShardWeights
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.search.learned.environment import Environment, PlacementBatch
from shardwright.testing.tasks import conformance_tasks, constrained_task
from tests.unit.search.autoshard.made import random_network, random_policy, varied_task


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
    every = torch.ones(len(arrays), 1, dtype=torch.bool)
    played = Trajectory(
        batch, order, torch.stack(actions), every, every, torch.stack(masks), torch.stack(memory),
        torch.zeros(len(arrays), 1), environment.assignment_eu, environment.excess_e,
    )  # fmt: skip
    logits = torch.empty(len(arrays), arrays.devices, dtype=torch.float64)
    logits[order[0]] = go_through(network, played).logits_ted[:, 0].detach()
    return logits


def compare(seed: int, arrays: PlacementArrays) -> None:
    arrays = replace(
        arrays,
        features=arrays.features.astype(np.float32).astype(np.float64),  # torch's environment holds single precision
        fixed_features=arrays.fixed_features.astype(np.float32).astype(np.float64),
    )
    network = random_network(seed)
    weights = AutoShardWeights(exported(network, {}))
    setting, order = _setting(arrays, weights)
    logits = np.empty(arrays.allowed.shape)
    unit, assignment = decode(setting, weights.decoder(), order, logits=logits)
    if unit >= 0:
        return
    expected = in_torch(network, arrays, order, assignment).numpy() - float(network.policy[-1].bias.detach())
    np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=1e-7)
    chosen = logits[np.arange(len(arrays)), assignment]
    np.testing.assert_allclose(chosen, expected.max(axis=1), rtol=1e-6, atol=1e-7)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), tables=st.integers(1, 14), devices=st.integers(1, 7))
def test_logits_are_those_of_torch(seed, tables, devices):
    compare(seed, PlacementArrays.of(varied_task(seed % 1000, tables, devices)))


def test_logits_are_those_of_torch_under_constraints_and_tight_memory():
    for seed, task in enumerate(conformance_tasks().values()):
        compare(seed, PlacementArrays.of(task))


def test_costs_and_encodings_are_those_of_torch():
    network, arrays = random_network(5), PlacementArrays.of(varied_task(0))
    weights = AutoShardWeights(exported(network, {}))
    features = torch.tensor(arrays.features, dtype=torch.float32)
    encoded = network.encode(features)
    np.testing.assert_allclose(weights.encode(arrays.features), encoded.detach(), rtol=1e-3, atol=1e-4)
    sums = encoded.sum(dim=0)
    expected = (network.relative_cost(sums) * network.cost_scale).detach().numpy()
    np.testing.assert_allclose(weights.cost_ms(sums.detach().numpy().astype(float)), expected[0], rtol=1e-4)


def test_the_order_is_that_of_torch():
    for seed in range(5):
        network, arrays = random_network(seed), PlacementArrays.of(varied_task(seed, 20, 3))
        _, order = _setting(arrays, AutoShardWeights(exported(network, {})))
        batch = PlacementBatch.of([arrays])
        assert costliest_first(network, batch, Encoded.of(network, batch))[0].tolist() == order.tolist()


def test_the_state_matters():
    """The same unit, on the same empty devices, gets other logits as the last of a task than as the first."""
    arrays = PlacementArrays.of(varied_task(0, 6, 3))
    weights = AutoShardWeights(random_policy(0))
    setting, order = _setting(arrays, weights)
    one, other = np.empty(arrays.allowed.shape), np.empty(arrays.allowed.shape)
    decode(setting, weights.decoder(), order, logits=one)
    decode(setting, weights.decoder(), order[::-1].copy(), logits=other)
    assert np.abs(one - other).max() > 1e-4


def test_equal_devices_are_taken_by_rank_and_roomier_ones_first():
    arrays = PlacementArrays.of(varied_task(0, 1, 4))
    weights = AutoShardWeights(random_policy(0))
    setting, order = _setting(arrays, weights)
    assert decode(setting, weights.decoder(), order)[1].tolist() == [0]
    roomier = setting._replace(memory=setting.memory + np.array([0, 0, 1, 0]))
    assert decode(roomier, weights.decoder(), order)[1].tolist() == [2]


def test_noise_decides_where_it_is_large():
    arrays = PlacementArrays.of(constrained_task())
    weights = AutoShardWeights(random_policy(0))
    setting, order = _setting(arrays, weights)
    noise = np.zeros(arrays.allowed.shape)
    wanted = arrays.allowed.argmax(axis=1)
    noise[np.arange(len(arrays)), wanted] = 1e6
    _, assignment = decode(setting._replace(rivals=np.zeros((0, 0), dtype=bool)), weights.decoder(), order, noise)
    assert assignment.tolist() == wanted.tolist()
