"""Searches for the tests of the engine."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from shardwright.search.engine.objective import refresh_times
from shardwright.search.engine.preparation import Prepared, prepare
from shardwright.search.engine.session import Session, Start
from shardwright.search.engine.starts import start
from shardwright.testing.model import SimpleCostModel

MODEL = SimpleCostModel()


def session_of(task, model=MODEL) -> tuple[Prepared, Session]:
    prepared = prepare(task, model)
    return prepared, Session(prepared.assembly, prepared.strain, prepared.spread_price, ThreadPoolExecutor(1))


def placed(prepared: Prepared, limit=np.inf, spreading=1.0):
    """A full state as the greedy start leaves it."""
    state, stuck = start(prepared.assembly, limit, 0.0, prepared.strain, prepared.spread_price * spreading)
    assert stuck < 0
    refresh_times(state, prepared.assembly.setting)
    return state


__all__ = ["MODEL", "Start", "placed", "session_of"]
