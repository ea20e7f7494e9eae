"""Strategies that place by a learned policy, and policies named by a user."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from shardwright.errors import InvalidInput
from shardwright.search.strategy import Strategy


def takes_policy(strategy: Strategy) -> bool:
    """Whether a strategy places by a policy: whether it has a field `policy`."""
    return is_dataclass(strategy) and any(field.name == "policy" for field in fields(strategy))


def with_policy(strategy: Strategy, policy: Path) -> Strategy:
    """The strategy with this policy in place of the bundled one.

    Raises:
        InvalidInput: the strategy takes no policy.
    """
    if not takes_policy(strategy):
        raise InvalidInput(
            f"strategy '{strategy.name}' takes no policy; name one that places by a learned policy, such as dreamshard, or leave the "
            "policy out"
        )
    return cast(Strategy, replace(cast(Any, strategy), policy=policy))
