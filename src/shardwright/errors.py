"""Every error Shardwright raises on purpose. Each message says the rule, the value and the remedy."""

from __future__ import annotations


class ShardwrightError(Exception):
    """Base of all deliberate errors; `exit_code` is what the command line returns for it."""

    exit_code = 1


class InvalidInput(ShardwrightError, ValueError):
    """A value, file or option breaks a rule; the message names the field, the value and the rule."""

    exit_code = 2


class InvalidPlan(InvalidInput):
    """A plan does not answer its task: a table is not tiled exactly, memory or a constraint is broken."""


class InfeasibleTask(ShardwrightError):
    """No plan exists (or the strategy found none); the message says which rule binds and what would help."""


class MissingDependency(ShardwrightError, ImportError):
    """An optional package is needed; the message has the install command."""


class MeasurementFailed(ShardwrightError):
    """A kernel could not be measured on this machine."""


class ClusterFailed(ShardwrightError):
    """A Ray cluster does not answer, has no room, or loses the same work again and again."""
