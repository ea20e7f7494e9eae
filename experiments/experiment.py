"""Experiments: independent pieces of work, rows of results for each, and a page of all rows.

Pieces make a run resumable: the rows of a piece are stored as soon as it is done, and no piece with stored rows is done again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Value]
"""One row of results of a piece of work: values by column name."""


@dataclass(frozen=True)
class Piece:
    """One piece of work, done without interruption.

    Attributes:
        key: identity of the piece, such as setting, task and strategy, by column name; unique within the experiment.
        version: all that the result depends on besides the key and this program: digests of cost model and policies, limits, options.
            Another version makes the row anew.
        alone: whether the piece must run alone because it measures. With several processes it runs after all others have ended.
    """

    key: Mapping[str, str | int | float]
    version: str = ""
    alone: bool = False


@dataclass(frozen=True)
class ResultTable:
    """A table of a page.

    Attributes:
        caption: the table's content, with units; Markdown.
        heads: heads of the columns.
        rows: cells by row; `str` makes their text.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Page:
    """The results of an experiment, ready to be written.

    Attributes:
        title: the heading.
        text: Markdown paragraphs before the tables: the setting, and the limits of the figures.
        tables: the tables.
        figures: pictures by the suffix of their file names; "" is the picture named like the experiment.
        conditions: how all tables were made: score, memory rule, batch and optimizer; a paragraph of its own.
    """

    title: str
    text: Sequence[str]
    tables: Sequence[ResultTable]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    conditions: str = ""


class Experiment(Protocol):
    """One of the papers' experiments. Implementations are small, frozen and can be sent to another process."""

    @property
    def name(self) -> str:
        """Name of the experiment on the command line and in files."""
        ...

    @property
    def about(self) -> str:
        """One line on the experiment's subject, and the paper that it follows."""
        ...

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """The pieces of work, ordered so that the first pieces already represent the whole (task by task, not strategy by strategy).

        Args:
            quick: only a part that takes at most five minutes on two cores; else all, at most two hours.

        Raises:
            InvalidInput: a requirement of the experiment is missing; the message names the remedy.
        """
        ...

    def run(self, piece: Piece) -> Sequence[Row]:
        """Do a piece of work, possibly in another process; the caller adds the columns of the piece's key.

        The rows of all pieces have the same columns.
        """
        ...

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """Make the page of the rows; if pieces are missing, the counts on the page show it."""
        ...
