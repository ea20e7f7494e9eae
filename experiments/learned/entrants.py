"""The strategies of the experiments about learned placement: those of the other experiments, and the RNN that trains on every task."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from experiments.entrants import LEARNED, SORTED, Entrant, Limits, entrant
from shardwright.search.rnn import Rnn, RnnOptions

RNN = "rnn"
UPDATES = RnnOptions.updates
"""How long `rnn` trains on a task, unless said otherwise."""
_LIMITS = Limits()
NAMES = ("random", *SORTED, "greedy", RNN, *LEARNED, "neuroshard", "certified")


def learned_entrant(
    name: str, limits: Limits = _LIMITS, *, rnn_updates: int = UPDATES, policy: Path | None = None
) -> Entrant:
    """A strategy by name.

    Args:
        name: of `NAMES`.
        limits: what searches are allowed.
        rnn_updates: updates of `rnn`, on every task anew.
        policy: file of the policy, for a strategy that places by one; by default the bundled one for CPUs.
    """
    if name == RNN:
        return Entrant(Rnn(RnnOptions(updates=rnn_updates)), f"{rnn_updates} updates")
    return entrant(name, limits, policy=policy)


@cache
def load_rnn() -> None:
    """Load once in this process what `rnn` needs, so that no search pays for it."""
    import shardwright as sw
    from experiments.learned.tasks import Setting, draw_task

    sw.plan(draw_task(Setting(8, 2), 0), strategy=Rnn(RnnOptions(updates=1)))
