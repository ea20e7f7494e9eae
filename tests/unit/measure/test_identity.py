"""Which collections may go on with a sample store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import InvalidInput
from shardwright.measure.collection import Collection, request_of
from shardwright.measure.hardware import DECISIVE
from shardwright.measure.identity import check_claim
from shardwright.workload.pools import table_pool

STORE = Path("store") / "identity.json"
POOL = table_pool("dlrm-2021")[:20]
HARDWARE = dict.fromkeys(DECISIVE, "the same")


def asked(**options: Any) -> dict[str, object]:
    """The request of `shardwright collect` with these options."""
    collection = Collection(samples=1, pool=POOL, device="cpu", **options)
    arena = collection.arena()
    return request_of(collection.sets(arena), arena)


def rejoin(found: dict[str, object], mine: dict[str, object]) -> None:
    check_claim(STORE, {"hardware": HARDWARE, "request": found}, {"hardware": HARDWARE, "request": mine}, False)


USUAL = asked(space="usual")
WIDE = asked(space="wide", optimizer="rowwise_adagrad", batch_sizes=[1024], sequence_share=0.0)
"""Says what the usual request says, and more."""


def test_the_same_request_goes_on() -> None:
    for request in (USUAL, WIDE):
        rejoin(request, dict(request))


def test_a_store_of_another_space_is_refused_both_ways() -> None:
    assert USUAL.items() < WIDE.items()
    with pytest.raises(InvalidInput, match=r"collected with \w+ unnamed \(the usual\), now .* is asked for; .*--space"):
        rejoin(USUAL, WIDE)
    with pytest.raises(
        InvalidInput,
        match=r"collected with \w+ .*, now unnamed \(the usual\) is asked for; .*--space.* or another folder",
    ):
        rejoin(WIDE, USUAL)


@pytest.mark.parametrize("option", sorted(WIDE.keys() - USUAL.keys()))
def test_every_key_that_only_one_of_the_two_names_is_compared(option: str) -> None:
    one_more = USUAL | {option: WIDE[option]}
    for found, mine in ((USUAL, one_more), (one_more, USUAL)):
        with pytest.raises(InvalidInput, match=f"collected with {option} "):
            rejoin(found, mine)


def test_a_value_that_is_none_is_not_one_left_out() -> None:
    with pytest.raises(InvalidInput, match="collected with new None, now unnamed"):
        rejoin(USUAL | {"new": None}, USUAL)


def test_a_store_made_before_there_were_spaces_goes_on_as_usual() -> None:
    """The first release noted these six alone."""
    assert USUAL.keys() == {"seed", "batch_sizes", "optimizer", "sequence_share", "arena_bytes", "pool"}
    rejoin(USUAL, asked())
