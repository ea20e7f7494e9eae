"""Inference without torch gives the results of the networks, and keeps memory and constraints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.dreamshard.mdp import encode, play
from shardwright.learned.dreamshard.policy import STUCK, Policy
from shardwright.learned.environment import PlacementBatch
from shardwright.testing.tasks import conformance_tasks, task_of
from tests.unit.learned.dreamshard.policies import network_of, random_policy


def rounded(task):
    """A task with features rounded to float32, the input of both sides."""
    arrays = PlacementArrays.of(task)
    single = {
        name: getattr(arrays, name).astype(np.float32).astype(np.float64) for name in ("features", "fixed_features")
    }
    return replace(arrays, **single)


TASKS = [rounded(task) for task in (*conformance_tasks().values(), task_of(40, 4, hosts=2))]


def double(batch):
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}
    wide = {name: value.double() if value.is_floating_point() else value for name, value in tensors.items()}
    return PlacementBatch(batch.tasks, **wide)


class Follow:
    """Repeats the choices of inference without torch, and notes how far their logits in torch lie below the best device's."""

    def __init__(self, placed, order):
        self._devices = iter(placed[order])
        self.regret = 0.0

    def __call__(self, logit_ed, mask_ed):
        device = int(next(self._devices))
        assert bool(mask_ed[0, device])
        best = logit_ed[0][mask_ed[0]].max()
        self.regret = max(self.regret, float(best - logit_ed[0, device]))
        return torch.tensor([device])


@settings(max_examples=30, print_blob=False)
@given(
    seed=st.integers(0, 10_000),
    number=st.integers(0, len(TASKS) - 1),
    method=st.sampled_from(["shardwright", "paper"]),
)
def test_compiled_inference_places_as_torch_does(seed, number, method):
    """Up to ties, which rounding decides."""
    arrays, saved = TASKS[number], replace(random_policy(seed), metadata={"method": method})
    network, policy = network_of(saved).double(), Policy(saved)
    with torch.no_grad():
        expected = encode(network, double(PlacementBatch.of([arrays])))
        alone = network.cost.device_costs(network.cost.hidden(expected.units_euh))[0].sum(dim=1).numpy()
    found = policy.encode(arrays)
    np.testing.assert_allclose(found.even, expected.even_ek[0].numpy(), rtol=1e-9)
    np.testing.assert_allclose(alone[found.order], -np.sort(-alone), rtol=1e-9, atol=1e-12)
    order = expected.order_eu[0].numpy()
    placed = policy.place(found, order)
    if (placed == STUCK).any():
        return
    follow = Follow(placed, order)
    play(network, expected, follow)
    assert follow.regret < 1e-9


@pytest.mark.parametrize("arrays", TASKS, ids=lambda arrays: f"{len(arrays)} on {arrays.devices}")
def test_placements_keep_memory_pins_and_rivals(arrays):
    policy = Policy(random_policy(1))
    encoded = policy.encode(arrays)
    rng = np.random.default_rng(0)
    for _ in range(10):
        placed = policy.place(encoded, noise=rng.gumbel(size=(len(arrays), arrays.devices)))
        whole = np.flatnonzero(placed != STUCK)
        used = arrays.used.copy()
        np.add.at(used, placed[whole], arrays.bytes[whole])
        assert (used <= arrays.memory).all()
        assert arrays.allowed[whole, placed[whole]].all()
        together = placed[whole, None] == placed[whole]
        assert not (together & arrays.rivals[np.ix_(whole, whole)]).any()


def test_noise_samples_the_policy():
    """Gumbel noise on logits draws from their softmax: a unit alone on equal devices goes to each as often."""
    arrays = rounded(task_of(1, 4))
    policy = Policy(random_policy(2))
    encoded, rng = policy.encode(arrays), np.random.default_rng(0)
    counts = np.bincount([policy.place(encoded, noise=rng.gumbel(size=(1, 4)))[0] for _ in range(400)], minlength=4)
    assert counts.min() > 60
