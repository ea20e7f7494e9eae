"""Searches for the tests of the engine."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from shardwright.search.engine.session import Prepared, SearchSession, Start, prepare, start
from shardwright.testing.model import SimpleCostModel

MODEL = SimpleCostModel()


def session_of(task, model=MODEL) -> tuple[Prepared, SearchSession]:
    prepared = prepare(task, model)
    return prepared, SearchSession(prepared, ThreadPoolExecutor(1))


def placed(prepared: Prepared, limit=np.inf, spreading=1.0):
    """A full solution as the greedy start leaves it."""
    how = Start(limit, spreading=spreading)
    solution, stuck = start(prepared, how)
    assert stuck < 0
    solution.refresh()
    return solution


__all__ = ["MODEL", "Start", "placed", "session_of"]
