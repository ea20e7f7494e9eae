"""Plans of `flexshard-traffic` beside each other: bytes saved, and how much faster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.experiment import Row
from experiments.flexshard.settings import EVERY


@dataclass(frozen=True)
class Compared:
    """A plan beside another of the same model.

    Attributes:
        saved: what part of the other's bytes between hosts it does without; NaN where the other sends none.
        faster: the other's communication time divided by its own.
    """

    saved: float
    faster: float


class Found:
    """The rows, looked up by setting and by case.

    Args:
        rows: rows of the experiment, of any part of its pieces.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._by_case = {(*_setting(row), row["exchange"], row["memory"], row["strategy"]): row for row in rows}

    def against(
        self, row: Row, exchange: str = EVERY, memory: float = 1.0, strategy: str = "row_wise"
    ) -> Compared | None:
        """A row beside another plan of its setting; None where one of the two is not there or does not fit."""
        other = self._by_case.get((*_setting(row), exchange, memory, strategy))
        own_ms = row["communication_ms"]
        if other is None or own_ms is None or (other_ms := other["communication_ms"]) is None:
            return None
        own, others = float(row["bytes_between"] or 0.0), float(other["bytes_between"] or 0.0)
        return Compared(1 - own / others if others else float("nan"), float(other_ms) / float(own_ms))

    def of(self, **values: object) -> list[Row]:
        """Rows with these values in their columns."""
        return [row for row in self.rows if all(row[name] == value for name, value in values.items())]


def _setting(row: Row) -> tuple[object, ...]:
    return tuple(row.get(name) for name in ("part", "accesses", "tables", "hosts", "gbits", "seed", "batch"))


def gained(found: Found, row: Row, rival: str) -> float | None:
    """How many times as fast a row's plan is as a rival's with the same exchange: `recshard` in the same memory, `row_wise` in 1×."""
    memory = 1.0 if rival == "row_wise" else float(row["memory"] or 0.0)
    compared = found.against(row, str(row["exchange"]), memory, rival)
    return compared.faster if compared else None


def some(found: Iterable[Compared | None]) -> list[Compared]:
    """Those that are there."""
    return [one for one in found if one is not None]


def gap(row: Row, column: str = "bound_ms") -> float | None:
    """(communication − bound) / bound, with the bound of a column; None where there is none."""
    ms, bound = row["communication_ms"], row[column]
    return float(ms) / float(bound) - 1 if ms is not None and bound else None
