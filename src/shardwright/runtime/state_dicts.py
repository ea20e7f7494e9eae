"""Loading state dicts: every rank has its own, and all ranks load theirs or hear why one cannot."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from shardwright.runtime.process_groups import Ranks


class Load(NamedTuple):
    """A load that has begun, since torch collects in three lists what is wrong with any part of a model.

    Attributes:
        errors: all messages so far.
        known: how many messages, missing keys and unexpected keys there were before this module's.
    """

    errors: list[str]
    known: tuple[int, int, int]

    def finish(self, ranks: Ranks, missing: list[str], unexpected: list[str]) -> None:
        """End on all ranks if the state of one did not fit; all ranks must call this.

        Whether a state may lack keys is for torch to say, but then those of all ranks do.

        Raises:
            InvalidInput: a rank's state did not fit, or has other keys than that of another.
        """
        ranks.agree("; ".join(self.errors[self.known[0] :]))
        keys = [f"missing {key}" for key in missing[self.known[1] :]]
        keys += [f"unexpected {key}" for key in unexpected[self.known[2] :]]
        ranks.must_be_same(
            [key.encode() for key in keys],
            "missing or unexpected keys in their state dicts",
            "load on each rank the state dict that this rank has saved",
        )


def refusal(state: Any, own: Mapping[str, str]) -> str | None:
    """Why the extra state of a state dict is not that of this plan and rank; None if it is."""
    if not isinstance(state, Mapping):
        return (
            f"the state dict says {reprlib.repr(state)} where it should name its plan and rank; "
            "load what state_dict() gave, or use save_checkpoint and load_checkpoint"
        )
    if state == own:
        return None
    return (
        f"the state dict is of rank {state.get('rank')} of another plan or job, this is rank {own['rank']}; "
        "use save_checkpoint and load_checkpoint to change the plan"
    )
