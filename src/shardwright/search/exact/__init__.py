"""`exact`: the best plan of a small task, by a mixed-integer linear program."""

from shardwright.search.exact.strategy import Exact

__all__ = ["Exact"]
