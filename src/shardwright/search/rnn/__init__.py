"""`rnn`: the sequence-to-sequence device placement that DreamShard is compared with, trained for each task by itself."""

from shardwright.search.rnn.strategy import Rnn, RnnOptions

__all__ = ["Rnn", "RnnOptions"]
