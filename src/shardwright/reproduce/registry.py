"""The experiments by name."""

from __future__ import annotations

from shardwright.errors import InvalidInput
from shardwright.reproduce.ablations import Ablations
from shardwright.reproduce.dreamshard_tables import DreamShardTables
from shardwright.reproduce.experiment import Experiment
from shardwright.reproduce.flexshard import FlexShardTraffic
from shardwright.reproduce.neuroshard_production import NeuroShardProduction
from shardwright.reproduce.neuroshard_table import NeuroShardTable
from shardwright.reproduce.transfer import Transfer

_EXPERIMENTS: tuple[Experiment, ...] = (
    NeuroShardTable(),
    NeuroShardProduction(),
    DreamShardTables(),
    Transfer(),
    FlexShardTraffic(),
    Ablations(),
)


def experiments() -> tuple[Experiment, ...]:
    """All experiments, in the order in which the papers came."""
    return _EXPERIMENTS


def experiment_named(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        InvalidInput: there is none.
    """
    known = {one.name: one for one in _EXPERIMENTS}
    if name not in known:
        raise InvalidInput(f"unknown experiment {name!r}; known experiments are {', '.join(known)}")
    return known[name]
