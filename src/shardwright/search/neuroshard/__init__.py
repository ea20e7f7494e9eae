"""NeuroShard's search: a beam over column splits outside, a greedy on a grid of dim bounds inside."""

from shardwright.search.neuroshard.strategy import NeuroShard

__all__ = ["NeuroShard"]
