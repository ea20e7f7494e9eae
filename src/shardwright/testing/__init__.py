"""For authors of strategies: `check_strategy` runs the conformance suite that every built-in strategy passes."""

from shardwright.testing.conformance import check_strategy
from shardwright.testing.tasks import conformance_tasks

__all__ = ["check_strategy", "conformance_tasks"]
