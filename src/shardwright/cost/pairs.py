"""Sets that were measured to be compared: the same tables whole and cut, on one device and on several.

What a cut costs is a small difference of large numbers, which a model that is right on each set may well miss. So some sets belong to a
*pair*: variants of the same work, each of one or several sets whose times add up. Variant 0 is what the others are compared with. A set
says so by its label, "pair:NAME/VARIANT/SETS": which pair, which variant, and how many sets the variant has.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_LABEL = re.compile(r"pair:(.+)/(\d+)/(\d+)")


def pair_label(name: str, variant: int, sets: int) -> str:
    """The label of a set of a variant that has so many sets."""
    return f"pair:{name}/{variant}/{sets}"


@dataclass(frozen=True)
class Pairs:
    """The complete variants of n sets.

    Attributes:
        variant: `(n,)` the variant of each set; -1 for one that belongs to none.
        base: `(variants,)` the variant that each is compared with; itself for those that are variant 0.
        group: `(n,)` numbers that are alike for all sets of one pair, and of no others.
    """

    variant: Ints
    base: Ints
    group: Ints

    @property
    def compared(self) -> Ints:
        """The variants that are compared with another one."""
        return np.flatnonzero(self.base != np.arange(len(self.base)))


def pairs_of(labels: Sequence[str]) -> Pairs:
    """The pairs among sets with these labels; a variant counts where all of its sets and those of variant 0 are there."""
    sets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    wanted: dict[tuple[str, int], int] = {}
    group, first = np.arange(len(labels)), dict[str, int]()
    for place, label in enumerate(labels):
        found = _LABEL.fullmatch(label)
        if found:
            key = (found[1], int(found[2]))
            sets[key].append(place)
            wanted[key] = int(found[3])
            group[place] = first.setdefault(found[1], place)
    complete = {key for key, places in sets.items() if len(places) == wanted[key]}
    used = sorted(key for key in complete if (key[0], 0) in complete)
    number = {key: index for index, key in enumerate(used)}
    variant = np.full(len(labels), -1)
    for key, index in number.items():
        variant[sets[key]] = index
    return Pairs(variant, np.array([number[name, 0] for name, _ in used], dtype=np.int64), group)
