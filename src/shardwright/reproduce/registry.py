"""The experiments by name."""

from __future__ import annotations

from shardwright.errors import InvalidInput
from shardwright.reproduce.ablations.ablations import Ablations
from shardwright.reproduce.autoshard.transfer import Transfer
from shardwright.reproduce.dreamshard.tables import DreamShardTables
from shardwright.reproduce.experiment import Experiment
from shardwright.reproduce.flexshard.traffic import FlexShardTraffic
from shardwright.reproduce.neuroshard.production import NeuroShardProduction
from shardwright.reproduce.neuroshard.table import NeuroShardTable

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
