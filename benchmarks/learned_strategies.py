"""Command-line options for the strategies that a program about learned placement runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.entrants import Entrant, Limits
from experiments.learned.tasks import NAMES, UPDATES, learned_entrant

from benchmarks.program import Options


def asked(names: tuple[str, ...] = NAMES) -> dict[str, Any]:
    """The options, for `options_of`."""
    return {
        "strategies": (list(names), "", names),
        "dreamshard": (Path, "policy of both dreamshards; by default the bundled one", {"metavar": "POLICY"}),
        "autoshard": (Path, "policy of autoshard; by default the bundled one", {"metavar": "POLICY"}),
        "time_limit": (5.0, "seconds a search of certified, neuroshard and dreamshard+"),
        "tolerance": (0.002, "gap at which certified stops"),
        "rnn_updates": (UPDATES, "updates of rnn, on every task anew"),
    }


def entrants(options: Options) -> list[Entrant]:
    """Return the chosen strategies."""
    limits = Limits(seconds=options.time_limit, tolerance=options.tolerance)
    policies = {"autoshard": options.autoshard, "dreamshard": options.dreamshard, "dreamshard+": options.dreamshard}
    return [
        learned_entrant(name, limits, rnn_updates=options.rnn_updates, policy=policies.get(name))
        for name in options.strategies
    ]
