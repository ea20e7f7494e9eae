"""Which sample is visited next: new ones first, and disturbed ones again when the disturbance may be over."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from time import monotonic

from shardwright.measure.failures import Failures
from shardwright.measure.journal import Key
from shardwright.measure.visits import Visits

_AGAIN_AFTER_S = 60.0


def to_revisit(samples: int) -> str:
    """What to say of samples that are to be visited again."""
    return f"{samples} to be revisited: the machine was not quiet" if samples else ""


class Agenda:
    """The samples of a store that are not settled yet.

    On a CPU noise is other programs', which come and go: a disturbed sample is visited again when a minute has passed, or nothing else is
    left. On a GPU it is visited again when nothing else is left.

    Args:
        wanted: samples, in the order of measuring.
        visits: the visits so far; whoever measures adds to them.
        failures: samples that are given up, on a GPU; None on a CPU.
    """

    def __init__(self, wanted: Sequence[Key], visits: Visits, failures: Failures | None) -> None:
        self._visits, self._failures = visits, failures
        todo = [key for key in wanted if not self._settled(key)]
        self._new = deque(key for key in todo if not visits.seen(key))
        self._again = deque((0.0, key) for key in todo if visits.seen(key))

    def __len__(self) -> int:
        """How many samples there are to take."""
        return len(self._new) + len(self._again)

    @property
    def unseen(self) -> int:
        """How many of them were never visited."""
        return len(self._new)

    def take(self) -> Key:
        """The next one, which is not on the agenda any more."""
        waited = self._failures is None and self._again and self._again[0][0] <= monotonic()
        return self._again.popleft()[1] if waited or not self._new else self._new.popleft()

    def coming(self, count: int) -> list[Key]:
        """New ones that will be taken soon."""
        return list(islice(self._new, count))

    def visited(self, key: Key) -> None:
        """Put a sample back that was visited, unless it is settled now."""
        if not self._settled(key):
            self._again.append((monotonic() + _AGAIN_AFTER_S, key))

    def lost(self, key: Key) -> None:
        """Put a sample back of which the visit came to nothing: it is the next one."""
        self._new.appendleft(key)

    def _settled(self, key: Key) -> bool:
        return self._visits.settled(key) or (self._failures is not None and key in self._failures)
