"""Run any plan with torch.distributed: lookups, training, checkpoints. Needs torch."""

from importlib.util import find_spec

from shardwright.errors import MissingDependency

if find_spec("torch") is None:
    raise MissingDependency("the runtime needs torch: pip install 'shardwright[measure]'")

from shardwright.runtime.checkpoint import load_checkpoint, save_checkpoint
from shardwright.runtime.embedding import ShardedEmbeddings
from shardwright.runtime.features import JaggedRows
from shardwright.runtime.storage import InitialRows, UniformRows
from shardwright.runtime.wire import TrafficMeter

__all__ = [
    "InitialRows",
    "JaggedRows",
    "ShardedEmbeddings",
    "TrafficMeter",
    "UniformRows",
    "load_checkpoint",
    "save_checkpoint",
]
