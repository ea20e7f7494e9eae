"""Tables that fit the terminal, and lines broken at spaces."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_NARROW = 80  # columns of a terminal or pipe as it comes: heads break for it, texts do not
_LEAST_TEXT = 12  # characters that a column of text keeps at least, if it has as many
_PARTS = re.compile("[^_./-]*[_./-]+|[^_./-]+")  # of a name, each up to its separator


def broken(text: str, width: int, *, within_words: bool = True) -> list[str]:
    """Break a line of text at spaces.

    Args:
        text: one line.
        width: of the lines, in cells of a terminal.
        within_words: whether a word longer than a line is broken too: after "_", ".", "/" or "-" if it has them, else anywhere.
    """
    lines = [""]
    for index, word in enumerate(text.split(" ")):
        spaced = f"{lines[-1]} {word}" if index else word
        if cell_len(spaced) <= width:
            lines[-1] = spaced
            continue
        if lines[-1].strip():
            lines.append("")
        if not within_words:
            lines[-1] += word
            continue
        for part in _PARTS.findall(word):
            for piece in chop_cells(part, width):
                if cell_len(lines[-1] + piece) > width:
                    lines.append("")
                lines[-1] += piece
    return lines


@dataclass(frozen=True)
class _Name:
    """A cell of text that breaks as `broken` does."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(broken(self.text, options.max_width)))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, cell_len(self.text))


@dataclass(frozen=True)
class _Width:
    """Cells of a column: the most, with a head broken at its spaces, and the least."""

    most: int
    headed: int
    least: int


class FittedTable(Table):
    """A table that is at most as wide as the terminal, unless its numbers need more."""

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        caption: str | None = None,
        *,
        texts: Collection[int] = (0,),
    ) -> None:
        """See `shardwright.cli.output.table`, which also makes the texts safe to print."""
        super().__init__(
            title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, title_justify="left", caption_justify="left"
        )
        self.collapse_padding = True
        self._limits = []
        for index, head in enumerate(columns):
            cells = max((cell_len(row[index]) for row in rows), default=0)
            headed = max(cells, *map(cell_len, head.split(" ")))
            least = min(headed, _LEAST_TEXT) if index in texts else headed
            self._limits.append(_Width(max(cells, cell_len(head)), headed, least))
            self.add_column(head, justify="left" if index in texts else "right")
        for row in rows:
            self.add_row(*(_Name(cell) if index in texts else cell for index, cell in enumerate(row)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths, gap = self._fit(options.max_width)
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        self.padding = (0, gap - 1)
        yield from super().__rich_console__(console, options.update_width(_total(widths, gap)))

    def _fit(self, room: int) -> tuple[list[int], int]:
        """Widths of the columns and the gap between them: heads break first, then texts, then the gap narrows."""
        narrow = min(room, _NARROW)
        for gap in (2, 1):
            for widths in ([column.most for column in self._limits], [column.headed for column in self._limits]):
                if _total(widths, gap) <= narrow:
                    return widths, gap
        widths = [column.most for column in self._limits]
        for gap in (2, 1):
            if _total(widths, gap) <= room:
                return widths, gap
            widths = [column.headed for column in self._limits]
            while _total(widths, gap) > room:
                spare = [index for index, column in enumerate(self._limits) if widths[index] > column.least]
                if not spare:
                    break
                widths[max(spare, key=lambda index: widths[index])] -= 1
            else:
                return widths, gap
        return widths, 1


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1) + 2  # 2 for the edges
