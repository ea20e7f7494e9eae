"""Collecting kernel samples on the machines of a Ray cluster: the driver draws and writes, the machines measure.

- `node`: what a worker does; it measures by the same process, on the same reserved core, as a machine that collects alone.
- `shelves`: the stores, one for each kind of hardware, and what is to be measured for each.
- `crew`: the workers, and what each must be asked before it measures.
- `collect`: the loop.
"""

from shardwright.measure.remote.collect import RemoteSummary, collect_on_cluster

__all__ = ["RemoteSummary", "collect_on_cluster"]
