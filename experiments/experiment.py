"""What an experiment is: many independent pieces of work, a row of results for each, and a page made of all rows.

The pieces make a run resumable: a row is on disk as soon as its piece is done, and a piece whose row is there is not done again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Value]
"""Results of one piece of work, by the names of columns."""


@dataclass(frozen=True)
class Piece:
    """One piece of work, done in one go.

    Attributes:
        key: what it is about, such as setting, task and strategy, by the names of columns; no other piece of the experiment has the same.
        version: what its result depends on besides the key and this program: digests of cost model and policies, limits, options. A row
            that was made with another version is made anew.
        alone: it measures: nothing runs beside it. Of several processes, none is at work when it is its turn, after all others.
    """

    key: Mapping[str, str | int | float]
    version: str = ""
    alone: bool = False


@dataclass(frozen=True)
class ResultTable:
    """A table of a page.

    Attributes:
        caption: what it shows, with units; Markdown.
        heads: heads of the columns.
        rows: cells, shown by `str`.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Page:
    """What an experiment found.

    Attributes:
        title: the heading.
        text: paragraphs before the tables, Markdown: what was run, and what its figures leave out.
        tables: the tables.
        figures: pictures by the end of their file names; "" is the one named like the experiment.
        conditions: what every table was made under: score, memory rule, batch and optimizer; stands beside each.
    """

    title: str
    text: Sequence[str]
    tables: Sequence[ResultTable]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    conditions: str = ""


class Experiment(Protocol):
    """One of the papers' experiments. Implementations are small, frozen, and can be sent to another process."""

    @property
    def name(self) -> str:
        """Its name in the command line and in files."""
        ...

    @property
    def about(self) -> str:
        """What it shows, and after which paper, in one line."""
        ...

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """The work, in an order in which any beginning of it is a fair picture of the whole (task by task, not strategy by strategy).

        Args:
            quick: a part that takes at most five minutes on two cores; else all, at most two hours.

        Raises:
            InvalidInput: what it needs is missing here, and the remedy.
        """
        ...

    def run(self, piece: Piece) -> Sequence[Row]:
        """Do a piece of work; the columns of its key are added by the caller.

        May run in another process. The rows of all pieces have the same columns.
        """
        ...

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """What the rows show; some pieces may be missing, in which case the page says so by its counts."""
        ...
