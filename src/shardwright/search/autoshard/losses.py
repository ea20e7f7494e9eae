"""What AutoShard's learner minimises, with V-trace: targets of value and policy from episodes that an older policy played.

Shape suffixes: e episodes, t steps, d devices, s shards of a batch.

References:
    [impala] Espeholt et al., IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures, ICML 2018.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shardwright.search.autoshard.network import AutoShardNetwork, Trajectory, go_through
from shardwright.search.autoshard.replay import ShardBatch
from shardwright.search.learned.options import AutoShardOptions, Method


class Returns(NamedTuple):
    """What V-trace says of each step.

    Attributes:
        targets_te: `(t, e)` what the value should have been.
        advantages_te: `(t, e)` by how much the chosen action was better than expected.
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
    *,
    highest_rho: float = 1.0,
    highest_c: float = 1.0,
) -> Returns:
    """Equation 1 and the policy gradient of section 4.2 of [impala].

    Args:
        log_ratio_te: log of the learner's over the actor's probability of the chosen action.
        reward_te: reward of each step.
        discount_te: discount of what comes after each step; 0 at an episode's last one.
        value_te: the learner's value of each step's state.
        bootstrap_e: its value of the state after the last step.
        highest_rho: importance weights of the temporal differences are cut to this.
        highest_c: those that carry later differences back are cut to this.
    """
    ratio_te = log_ratio_te.exp()
    rho_te, c_te = ratio_te.clamp(max=highest_rho), ratio_te.clamp(max=highest_c)
    next_value_te = torch.cat([value_te[1:], bootstrap_e[None]])
    delta_te = rho_te * (reward_te + discount_te * next_value_te - value_te)
    correction_te = torch.empty_like(value_te)
    carried_e = torch.zeros_like(bootstrap_e)
    for step in reversed(range(len(value_te))):
        carried_e = delta_te[step] + discount_te[step] * c_te[step] * carried_e
        correction_te[step] = carried_e
    targets_te = value_te + correction_te
    next_target_te = torch.cat([targets_te[1:], bootstrap_e[None]])
    return Returns(targets_te, rho_te * (reward_te + discount_te * next_target_te - value_te))


_WORTH = 0.1  # of the mean cost of a device


class PolicyLoss(NamedTuple):
    """The loss, and what is shown of it.

    Attributes:
        loss: policy gradient, value and entropy, summed over all steps of all episodes as in the authors' code.
        entropy: mean entropy of a choice.
        value_error: mean absolute difference of values and their V-trace targets.
    """

    loss: Tensor
    entropy: float
    value_error: float


def policy_loss(
    network: AutoShardNetwork, played: Trajectory, reward_e: Tensor, options: AutoShardOptions
) -> PolicyLoss:
    """The actor-critic loss of a trajectory that an older policy played; each episode's reward comes at its last step."""
    outputs = go_through(network, played)
    log_probs_ted = outputs.logits_ted.log_softmax(dim=-1)
    log_prob_te = log_probs_ted.gather(2, played.action_te[..., None])[..., 0]
    last_te = torch.arange(len(played.action_te))[:, None] == played.batch.unit_count_e - 1
    returns = v_trace(
        torch.where(played.placed_te, log_prob_te.detach() - played.log_prob_te, 0.0),
        torch.where(last_te, reward_e, 0.0),
        (played.active_te & ~last_te).float(),
        torch.where(played.active_te, outputs.value_te.detach(), 0.0),
        torch.zeros_like(reward_e),
    )
    gain = (log_prob_te * returns.advantages_te)[played.placed_te].sum()
    possible_ted = log_probs_ted.masked_fill(~played.mask_ted, 0.0)  # no infinity may meet a 0
    entropy_te = -(possible_ted.exp() * possible_ted * played.mask_ted).sum(dim=-1)
    error_te = (returns.targets_te - outputs.value_te)[played.active_te]
    loss = options.value_weight * 0.5 * error_te.square().sum() - gain - options.entropy_weight * entropy_te.sum()
    choices = max(1, int(played.placed_te.sum()))
    return PolicyLoss(loss, float(entropy_te.detach().sum()) / choices, float(error_te.detach().abs().mean()))


def cost_loss(network: AutoShardNetwork, shards: ShardBatch, method: Method = "shardwright") -> Tensor:
    """Mean squared relative error of predicted costs; what costs next to nothing is not worth being exact.

    The paper squares the error in ms, with which tables that cost little are priced badly, although they come last and level the devices.
    """
    true_s = shards.cost_s / network.cost_scale
    error_s = shards.predicted(network) - true_s
    return (error_s if method == "paper" else error_s / (true_s + _WORTH)).square().mean()
