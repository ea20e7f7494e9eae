"""Run independent jobs in the processes of a Ray cluster, on this machine or on many; knows nothing of tables."""

from shardwright.cluster.connection import open_cluster
from shardwright.cluster.pool import Cluster, Pool

__all__ = ["Cluster", "Pool", "open_cluster"]
