"""Collecting kernel samples on the machines of a Ray cluster: the driver draws and writes, the machines measure.

- `node`: what a worker does; it measures by the same process, on the same reserved core, as a machine that collects alone.
- `collect`: the workers, what each must be asked before it measures, what is left to measure for each kind of hardware; and the loop.
"""

from shardwright.measure.remote.collect import RemoteSummary, collect_on_cluster

__all__ = ["RemoteSummary", "collect_on_cluster"]
