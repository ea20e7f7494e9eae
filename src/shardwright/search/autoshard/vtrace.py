"""V-trace: targets of the value and advantages of the policy from episodes that an older policy played.

Shape suffixes: t steps, e episodes.

References:
    [impala] Espeholt et al., IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures, ICML 2018.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
