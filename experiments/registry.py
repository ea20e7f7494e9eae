"""The experiments by name."""

from __future__ import annotations

from experiments.ablations.ablations import Ablations
from experiments.autoshard.transfer import Transfer
from experiments.dreamshard.tables import DreamShardTables
from experiments.experiment import Experiment
from experiments.flexshard.traffic import FlexShardTraffic
from experiments.measured import PapersMeasured
from experiments.neuroshard.production import NeuroShardProduction
from experiments.neuroshard.published import NeuroShardPublished
from experiments.neuroshard.table import NeuroShardTable
from shardwright.errors import InvalidInput

_EXPERIMENTS: tuple[Experiment, ...] = (
    NeuroShardTable(),
    NeuroShardProduction(),
    NeuroShardPublished(),
    DreamShardTables(),
    Transfer(),
    FlexShardTraffic(),
    Ablations(),
    PapersMeasured(),
)


def experiments() -> tuple[Experiment, ...]:
    """All experiments, in the order in which the papers came."""
    return _EXPERIMENTS


def experiment_named(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        InvalidInput: no experiment has this name.
    """
    known = {experiment.name: experiment for experiment in _EXPERIMENTS}
    if name not in known:
        raise InvalidInput(
            f"unknown experiment {name!r}; known are {', '.join(known)}; 'python -m experiments' lists them"
        )
    return known[name]
