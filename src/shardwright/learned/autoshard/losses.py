"""The losses of AutoShard's learner; V-trace gives targets for value and policy from episodes that an older policy played.

Shape suffixes: e episodes, t steps, d devices, s shards of a batch.

References:
    [impala] Espeholt et al., IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures, ICML 2018.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shardwright.learned.autoshard.network import AutoShardNetwork, Trajectory, go_through
from shardwright.learned.autoshard.replay import ShardBatch
from shardwright.learned.environment import choices
from shardwright.learned.options import AutoShardOptions, Method


class Returns(NamedTuple):
    """The results of V-trace for each step.

    Attributes:
        targets_te: `(t, e)` target of the value.
        advantages_te: `(t, e)` how much better the chosen action was than expected.
    """

    targets_te: Tensor
    advantages_te: Tensor


@torch.no_grad()
def v_trace(
    log_ratio_te: Tensor,
    reward_te: Tensor,
    discount_te: Tensor,
    value_te: Tensor,
    bootstrap_e: Tensor,
) -> Returns:
    """Equation 1 and the policy gradient of section 4.2 of [impala], with importance weights of at most 1.

    Args:
        log_ratio_te: log of the learner's probability of the chosen action over the actor's.
        reward_te: reward of each step.
        discount_te: discount of the rewards after each step; 0 at an episode's last step.
        value_te: the learner's value of each step's state.
        bootstrap_e: the learner's value of the state after the last step.
    """
    weight_te = log_ratio_te.exp().clamp(max=1.0)
    next_value_te = torch.cat([value_te[1:], bootstrap_e[None]])
    delta_te = weight_te * (reward_te + discount_te * next_value_te - value_te)
    correction_te = torch.empty_like(value_te)
    carried_e = torch.zeros_like(bootstrap_e)
    for step in reversed(range(len(value_te))):
        carried_e = delta_te[step] + discount_te[step] * weight_te[step] * carried_e
        correction_te[step] = carried_e
    targets_te = value_te + correction_te
    next_target_te = torch.cat([targets_te[1:], bootstrap_e[None]])
    return Returns(targets_te, weight_te * (reward_te + discount_te * next_target_te - value_te))


_WORTH = 0.1  # share of the mean device cost that is added to costs when relative errors are taken


class PolicyLoss(NamedTuple):
    """The loss of a learner step, with figures for the training record.

    Attributes:
        loss: policy gradient, value and entropy terms, summed over all steps of all episodes as in the authors' code.
        entropy: mean entropy of a choice.
        value_error: mean absolute difference between values and their V-trace targets.
    """

    loss: Tensor
    entropy: float
    value_error: float


def policy_loss(
    network: AutoShardNetwork, played: Trajectory, reward_e: Tensor, options: AutoShardOptions
) -> PolicyLoss:
    """The actor-critic loss of a trajectory that an older policy played; each episode is rewarded at its last step."""
    logits_ted, value_te = go_through(network, played)
    log_prob_te, entropy_te = choices(logits_ted, played.mask_ted, played.action_te)
    last_te = torch.arange(len(played.action_te))[:, None] == played.batch.unit_count_e - 1
    returns = v_trace(
        torch.where(played.placed_te, log_prob_te.detach() - played.log_prob_te, 0.0),
        torch.where(last_te, reward_e, 0.0),
        (played.active_te & ~last_te).float(),
        torch.where(played.active_te, value_te.detach(), 0.0),
        torch.zeros_like(reward_e),
    )
    gain = (log_prob_te * returns.advantages_te)[played.placed_te].sum()
    error_te = (returns.targets_te - value_te)[played.active_te]
    loss = options.value_weight * 0.5 * error_te.square().sum() - gain - options.entropy_weight * entropy_te.sum()
    placed = max(1, int(played.placed_te.sum()))
    return PolicyLoss(loss, float(entropy_te.detach().sum()) / placed, float(error_te.detach().abs().mean()))


def cost_loss(network: AutoShardNetwork, shards: ShardBatch, method: Method = "shardwright") -> Tensor:
    """Mean squared relative error of predicted costs; sets that cost next to nothing need not be exact.

    The paper squares the error in ms. That makes errors on cheap tables large, although these are placed last to even out the devices.
    """
    true_s = shards.cost_s / network.cost_scale
    error_s = shards.predicted(network) - true_s
    return (error_s if method == "paper" else error_s / (true_s + _WORTH)).square().mean()
