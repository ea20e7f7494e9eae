"""Tasks at the extremes of what dense layers may hide, from which the bound follows; see "Overlap" in `search.bound`."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product

from shardwright.cost.collectives import prices_of
from shardwright.search.engine.catalog import Catalog
from shardwright.task.task import Task
from shardwright.task.topology import ALWAYS_MS, DenseTime


def extremes(task: Task) -> list[tuple[Task, float]]:
    """The task if dense layers hide each kind of traffic always or never, and by how many ms steps are longer there at most.

    The first is the task that hides nothing. A kind of traffic that dense layers do not hide in the task is hidden in none.
    """
    hidden = {kind: ms for kind, ms in asdict(task.exchange.hidden).items() if ms > 0}
    found = []
    for always in product((False, True), repeat=len(hidden)):
        dense = DenseTime(**{kind: ALWAYS_MS for kind, is_always in zip(hidden, always, strict=True) if is_always})
        longer = sum(ms for ms, is_always in zip(hidden.values(), always, strict=True) if not is_always)
        found.append((replace(task, exchange=replace(task.exchange, dense_ms=dense)) if hidden else task, longer))
    return found


def hiding(catalog: Catalog, task: Task) -> Catalog:
    """The catalog of one of these tasks, from that of the task itself: only what dense layers hide is priced otherwise."""
    if task is catalog.task:
        return catalog
    values, _, gradients = prices_of(task).counts
    links = catalog.spreads.links
    links = links._replace(apart=links.apart * [values, gradients])
    return replace(catalog, task=task, spreads=replace(catalog.spreads, links=links))
