"""NeuroShard's search: beam over column splits outside, greedy on a grid of dim bounds inside."""

from shardwright.search.neuroshard.strategy import NeuroShard

__all__ = ["NeuroShard"]
