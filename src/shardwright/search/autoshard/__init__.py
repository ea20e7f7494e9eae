"""AutoShard (KDD 2022): a cost model and an LSTM policy learned together; whole tables, kernel times only."""

from shardwright.search.autoshard.strategy import AutoShard

__all__ = ["AutoShard"]
