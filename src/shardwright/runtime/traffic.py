"""The traffic meter: bytes that one rank sends and receives, counted from the very sizes that are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]

LINKS = ("self", "intra", "inter")
PHASES = ("forward", "backward")
KINDS = ("counts", "ids", "values", "gradients", "replicas")


@dataclass
class TrafficMeter:
    """Bytes of one rank since the last reset.

    A key is (phase, kind, link): phase "forward" or "backward"; kind "counts" (the sizes that ranks tell each other first), "ids",
    "values", "gradients" (of looked-up rows, to their holders) or "replicas" (among the replicas of a row); link "self" (stays on
    the rank, and is not sent at all), "intra" (inside the host) or "inter" (between hosts).

    Attributes:
        sent: bytes by key.
        received: bytes by key.
    """

    sent: dict[tuple[str, str, str], int] = field(default_factory=dict)
    received: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget everything counted so far."""
        self.sent.clear()
        self.received.clear()

    def total(self, link: str | None = None, phase: str | None = None, kind: str | None = None) -> int:
        """Bytes sent with this link, phase and kind; None stands for all of them (of links: those that are sent, not "self")."""
        return sum(
            size
            for (its_phase, its_kind, its_link), size in self.sent.items()
            if (link == its_link if link else its_link != "self")
            and phase in (None, its_phase)
            and kind in (None, its_kind)
        )

    def add(self, phase: str, kind: str, links: Sequence[int], sent: Ints, received: Ints) -> None:
        """Count one exchange.

        Args:
            phase: forward or backward.
            kind: one of `KINDS`.
            links: `(members,)` link to each member of the group, as numbers of `LINKS`.
            sent: `(members,)` bytes sent to each.
            received: `(members,)` bytes received from each.
        """
        for book, sizes in ((self.sent, sent), (self.received, received)):
            for link, size in enumerate(np.bincount(links, weights=sizes, minlength=len(LINKS))):
                if size:
                    key = (phase, kind, LINKS[link])
                    book[key] = book.get(key, 0) + int(size)
