"""V-trace against a plain reference that follows the definition."""

import numpy as np
import pytest
import torch

from shardwright.learned.autoshard.losses import v_trace


def drawn(seed: int, steps: int = 9, episodes: int = 4) -> dict[str, torch.Tensor]:
    """Random trajectories; some steps end an episode."""
    rng = np.random.default_rng(seed)
    shape = (steps, episodes)
    return {
        "log_ratio_te": torch.tensor(rng.normal(0, 1, shape)),
        "reward_te": torch.tensor(rng.normal(0, 1, shape)),
        "discount_te": torch.tensor(np.where(rng.random(shape) < 0.2, 0.0, 0.9)),
        "value_te": torch.tensor(rng.normal(0, 1, shape)),
        "bootstrap_e": torch.tensor(rng.normal(0, 1, episodes)),
    }


def reference(log_ratio_te, reward_te, discount_te, value_te, bootstrap_e):
    """v_s = V(x_s) + Σ_t (Π_i<t discount_i c_i) discounted δ_t, straight from equation 1 of the paper, one number after another."""
    steps, episodes = value_te.shape
    targets = torch.zeros_like(value_te)
    advantages = torch.zeros_like(value_te)
    for e in range(episodes):
        values = [*value_te[:, e].tolist(), float(bootstrap_e[e])]
        rho = c = log_ratio_te[:, e].exp().clamp(max=1.0).tolist()
        reward, discount = reward_te[:, e].tolist(), discount_te[:, e].tolist()
        v = []
        for s in range(steps):
            total = values[s]
            for t in range(s, steps):
                delta = rho[t] * (reward[t] + discount[t] * values[t + 1] - values[t])
                weight = 1.0
                for i in range(s, t):
                    weight *= discount[i] * c[i]
                total += weight * delta
            v.append(total)
        v.append(values[-1])
        for s in range(steps):
            targets[s, e] = v[s]
            advantages[s, e] = rho[s] * (reward[s] + discount[s] * v[s + 1] - values[s])
    return targets, advantages


@pytest.mark.parametrize("seed", range(5))
def test_targets_and_advantages_are_those_of_the_definition(seed):
    made = drawn(seed)
    returns, (targets, advantages) = v_trace(**made), reference(**made)
    torch.testing.assert_close(returns.targets_te, targets)
    torch.testing.assert_close(returns.advantages_te, advantages)


def test_targets_of_the_own_policy_are_what_came_after():
    """Without a difference of policies, and without discounting, a target is the sum of the rewards to come."""
    made = drawn(1) | {"log_ratio_te": torch.zeros(9, 4, dtype=torch.float64)}
    made["discount_te"] = torch.ones_like(made["discount_te"])
    made["discount_te"][-1] = 0.0
    to_come = made["reward_te"].flip(0).cumsum(0).flip(0)
    torch.testing.assert_close(v_trace(**made).targets_te, to_come)


def test_nothing_flows_over_the_end_of_an_episode():
    made = drawn(2)
    made["discount_te"][4] = 0.0
    before = v_trace(**made)
    made["reward_te"][5:] += 100.0
    after = v_trace(**made)
    torch.testing.assert_close(after.targets_te[:5], before.targets_te[:5])
    assert not torch.allclose(after.targets_te[5:], before.targets_te[5:])
