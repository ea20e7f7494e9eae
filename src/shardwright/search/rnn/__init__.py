"""`rnn`: the sequence-to-sequence device placement that DreamShard is compared with, trained for each task by itself."""

from shardwright.search.learned.options import RnnOptions
from shardwright.search.rnn.strategy import Rnn

__all__ = ["Rnn", "RnnOptions"]
