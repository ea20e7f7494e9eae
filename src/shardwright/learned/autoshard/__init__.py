"""AutoShard (KDD 2022): a cost model and an LSTM policy, learned together. It places whole tables and regards kernel times only."""

from shardwright.learned.autoshard.strategy import AutoShard

__all__ = ["AutoShard"]
