"""Independent jobs on the processes of a Ray cluster: on this machine, or on many.

    from shardwright.cluster import open_cluster

    with open_cluster("local") as cluster:
        for index, size in cluster.run(size_of_file, paths):
            ...

This layer knows nothing of tables: it takes plain functions. Ray itself is imported when a cluster is opened.
"""

from shardwright.cluster.connection import open_cluster
from shardwright.cluster.jobs import Cluster, Node
from shardwright.cluster.pool import Lost, Pool

__all__ = ["Cluster", "Lost", "Node", "Pool", "open_cluster"]
