"""The table of statistics that TorchRec's planner logs (`EmbeddingStats`), read out of any log that holds it.

A log may prefix lines with times and ranks, colour them, wrap them at a terminal's width, and mix in other lines. The table stands between
two lines of `#`. Each of its lines begins and ends with `#`, and cells are three spaces apart. Releases since 2022 differ in their columns,
which are found by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from shardwright.errors import InvalidInput

_FRAME = re.compile(r"(?:^|[^#])(#{40,})\s*$")
_INSIDE = re.compile(r"^[^#]*#[^#]")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OF_RANK = re.compile(r"\s*\[(?:rank|default|\d+,)?(\d+)\](?:<\w+>)?:\s?")
_GAP = re.compile(r"\s{2,}")
_RANKS = re.compile(r"(\d{1,6})-(\d{1,6})")
_EACH = re.compile(r"(\d+)(?:\s*\*\s*(\d+))?")
_WIDTHS = re.compile(r"([1-9]\d{0,8})(?:\s*\(([1-9]\d{0,8})\))?")
_NUMBER = re.compile(r"\d{1,15}(?:\.\d+)?(?:e[+-]?\d{1,2})?")
_SIZE = re.compile(r"([\d.]+) GB")
_BATCH = re.compile(r"Batch Size: \d+")
_COLUMNS = {
    "name": ("FQN",),
    "kind": ("Sharding",),
    "pooling": ("Sum Pooling Factor", "Pooling Factor"),
    "dim": ("Emb Dim (CW Dim)", "Emb Dim"),
    "rows": ("Hash Size",),
    "ranks": ("Ranks",),
    "kernel": ("Compute Kernel",),
    "output": ("Output",),
    "weighted": ("Weighted", "Weighing"),
    "features": ("Features",),
    "indices": ("Num Indices",),
    "bags": ("Sum Num Poolings", "Num Poolings", "Number of Poolings"),
    "storage": ("Storage (HBM, DDR)", "Storage (HBM, DDR, SSD)"),
    "batches": ("Batch Sizes",),
}
_NEEDED = ("name", "kind", "pooling", "dim", "rows", "ranks")
_DEBUG = "EmbeddingShardingPlanner(debug=True)"
_MOST_RANKS = _MOST_BAGS = 65_536


@dataclass(frozen=True)
class LoggedTable:
    """One row of the table: an embedding table, and how TorchRec shards it.

    Attributes:
        name: path of the table's module and its name, with dots between.
        kind: the sharding type as TorchRec abbreviates it.
        ranks: ranks of the blocks, sorted, so that their order is not that of the blocks.
        rows: the hash size.
        dim: the embedding dimension.
        block_dim: columns of a block, if the release prints them.
        lookups: mean lookups of each bag of a sample, equal for all bags of the table, for samples of the step's batch. A feature has one
            bag, or as many as its `num_poolings`.
        pooled: whether looked-up rows are summed.
        weighted: whether lookups have weights.
        kernel: the compute kernel.
        storage: bytes of device memory by TorchRec's estimate; None if the release does not print it.
        line: line of the log in which the row begins, from 1.
    """

    name: str
    kind: str
    ranks: tuple[int, ...]
    rows: int
    dim: int
    block_dim: int | None
    lookups: tuple[float, ...]
    pooled: bool
    weighted: bool
    kernel: str
    storage: float | None
    line: int = field(compare=False)


@dataclass(frozen=True)
class StatsTable:
    """The content of one table of statistics.

    Attributes:
        line: line of the log in which the table begins, from 1.
        tables: the embedding tables, in the order of the log.
        ranks: number of devices.
        batch_size: samples of each device in a step.
        memory: bytes of a device that the planner may fill with tables, their input and the dense layers; None if the log does not print
            it.
        card: bytes of a device before TorchRec's reservation; None if the log does not print it.
        others: bytes of that memory for dense layers and inputs.
    """

    line: int
    tables: tuple[LoggedTable, ...]
    ranks: int
    batch_size: int
    memory: float | None
    card: float | None
    others: float


@dataclass(frozen=True)
class _Line:
    """A line of the table: the text between its two `#`, and its position in the log."""

    number: int
    text: str

    @property
    def cells(self) -> list[str]:
        return _GAP.split(self.text.strip())


def decoded(content: bytes) -> str:
    """The text of a log; in UTF-16 if it begins with that mark, as PowerShell writes it."""
    return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")


def holds_stats(text: str) -> bool:
    """Whether a file may be a log with a table of statistics: a line of many `#` is in it."""
    return "#" * 40 in text


def read_stats(text: str, where: str) -> list[StatsTable]:
    """Read every table of statistics in a log; one that several ranks print alike counts once.

    Raises:
        InvalidInput: there is no table, or one is cut off, garbled, or lacks a column that a plan needs.
    """
    statistics: list[StatsTable] = []
    headless = None
    for lines in _between_frames(text):
        heads = [index for index, line in enumerate(lines) if "FQN" in line.cells]
        if not heads and not any("Planner Statistics" in line.text for line in lines):
            headless = headless or next((line.number for line in lines if _BATCH.fullmatch(line.text.strip())), None)
            continue
        if not heads:
            spaces = any("FQN" in line.text for line in lines)
            remedy = "name a log that keeps the spaces between cells" if spaces else f"log them with {_DEBUG}"
            raise InvalidInput(f"{where}: line {lines[0].number}: these planner statistics list no tables; {remedy}")
        printed = _stats(lines, heads[0], where)
        if all(printed.tables != other.tables for other in statistics):
            statistics.append(printed)
    if not statistics and headless:
        raise InvalidInput(
            f"{where}: line {headless}: the planner's table that ends here lacks its head, with the line 'FQN'; name a log "
            "that holds all of it"
        )
    if not statistics:
        raise InvalidInput(f"{where}: holds no planner statistics of TorchRec; log at level INFO, with {_DEBUG}")
    return statistics


def _between_frames(text: str) -> Iterator[list[_Line]]:
    """Lines between two lines of `#`. Mixed lines of several ranks, as torchrun prefixes them, are separated."""
    by_rank: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        plain = _COLOURS.sub("", line) if "\x1b" in line else line
        plain = plain.rstrip("\r").rpartition("\r")[2]  # a progress bar before the line
        rank = _OF_RANK.match(plain)
        by_rank.setdefault(rank[1] if rank else "", []).append((number, plain))
    for lines in by_rank.values():
        part: list[tuple[int, str]] = []
        for number, plain in lines:
            frame = _FRAME.search(plain) if plain.endswith(("#", " ")) else None
            if frame:
                yield _whole(part, len(frame[1]))
                part = []
            else:
                part.append((number, plain))
        yield _whole(part, 0)  # cut off


def _whole(part: Sequence[tuple[int, str]], wide: int) -> list[_Line]:
    """The lines of a table as wide as its frame, joined if a terminal wrapped them."""
    counts = [text.count("#") for _, text in part]
    if counts.count(1) <= sum(count > 1 for count in counts):
        return [
            _Line(number, _between(text, wide))
            for (number, text), count in zip(part, counts, strict=True)
            if count > 1 and _INSIDE.search(text)
        ]
    width = max(len(text) for _, text in part)
    lines, begun, first = [], "", 0
    for (number, text), count in zip(part, counts, strict=True):
        if not begun and count:
            begun, first = text[text.index("#") :].ljust(width - text.index("#")), number
        elif begun:
            begun += text.ljust(width)
            if count:
                lines.append(_Line(first, begun[1 : begun.rindex("#")]))
                begun = ""
    return lines


def _between(text: str, wide: int) -> str:
    """The text between the two `#` of a line that is as wide as its frame, or else between its first and its last `#`."""
    end = text.rindex("#")
    begin = end + 1 - wide
    return text[(begin if 0 <= begin < end and text[begin] == "#" else text.index("#")) + 1 : end]


def _stats(lines: list[_Line], head: int, where: str) -> StatsTable:
    """Read one table; `head` is the line with the names of its columns."""
    columns = _columns(lines[head], where)
    width, rows = len(lines[head].cells), []
    for line in lines[head + 1 :]:
        cells = line.cells
        if "-----" in cells:
            continue
        if len(cells) == 1:
            break
        if len(cells) != width:
            raise InvalidInput(
                f"{where}: line {line.number}: this row of the planner's table has {len(cells)} cells, its header {width}; "
                "name a log that keeps the spaces between cells"
            )
        rows.append(_row(line.number, {field: cells[index] for field, index in columns.items()}, where))
    rest = [line.text.strip() for line in lines]
    batch = next((text for text in rest if _BATCH.fullmatch(text)), None)
    if batch is None or not rows:
        raise InvalidInput(
            f"{where}: line {lines[-1].number}: the planner's table is cut off after {len(rows)} tables; name a log that holds it all, "
            "with the line 'Batch Size' below its rows"
        )
    ranks = _ranks_above(lines[:head]) or 1 + max(rank for row, _ in rows for rank in row.ranks)
    size = max(1, int(batch.split()[-1]))
    tables = tuple(_checked([_in_batch(row, batches, size) for row, batches in rows], ranks, where))
    card, memory, others = _memory(rest)
    return StatsTable(lines[0].number, tables, ranks, size, memory, card, others)


def _columns(header: _Line, where: str) -> dict[str, int]:
    """Places of the columns by field."""
    cells = header.cells
    places = {}
    for column, names in _COLUMNS.items():
        name = next((name for name in names if name in cells), None)
        if name is not None:
            places[column] = cells.index(name)
        elif column in _NEEDED:
            raise InvalidInput(
                f"{where}: line {header.number}: the planner's table has no column '{names[0]}', which a plan needs; its columns are "
                f"{', '.join(cells)}: log it with a release of TorchRec since 2022"
            )
    return places


def _row(line: int, cells: dict[str, str], where: str) -> tuple[LoggedTable, list[int]]:
    """One row, and the batch sizes of its features if they differ from the step's."""

    def match(field: str, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        matched = pattern.fullmatch(cells[field])
        if matched is None:
            raise InvalidInput(
                f"{where}: line {line}: '{cells[field]}' in column '{_COLUMNS[field][0]}' is no {what}; name the log as it was written"
            )
        return matched

    def number(field: str) -> float:
        return float(match(field, _NUMBER, "number")[0])

    columns = match("dim", _WIDTHS, "width")
    features = int(match("features", re.compile(r"\d{1,5}"), "count")[0]) if "features" in cells else 1
    features = max(features, 1)
    bags = min(max(round(number("bags")), 1), _MOST_BAGS) if "bags" in cells else features
    lookups = number("indices") if "indices" in cells else number("pooling") * bags / features
    storage = _SIZE.search(cells.get("storage", ""))
    batches = [
        int(size)
        for size, count in _EACH.findall(cells.get("batches", ""))
        for _ in range(min(int(count or 1), features))
    ]
    table = LoggedTable(
        name=cells["name"],
        kind=cells["kind"],
        ranks=_ranks(match("ranks", re.compile(r"[\d,-]+"), "list of ranks")[0], line, where),
        rows=int(match("rows", re.compile(r"[1-9]\d{0,17}"), "count")[0]),
        dim=int(columns[1]),
        block_dim=int(columns[2]) if columns[2] else None,
        lookups=(lookups / bags,) * bags,
        pooled=cells.get("output", "pooled") == "pooled",
        weighted=cells.get("weighted") == "weighted",
        kernel=cells.get("kernel", "fused"),
        storage=float(storage[1]) * 2**30 if storage else None,
        line=line,
    )
    return table, batches


def _ranks(text: str, line: int, where: str) -> tuple[int, ...]:
    """The ranks of a cell: `0,0,3`, or `0-7` for consecutive ones."""
    ranks: list[int] = []
    for part in text.split(","):
        span = _RANKS.fullmatch(part)
        if not span and not part.isdecimal():
            raise InvalidInput(f"{where}: line {line}: '{text}' is no list of ranks; name the log as it was written")
        low, high = (int(span[1]), int(span[2])) if span else (int(part), int(part))
        if not 0 <= high - low < _MOST_RANKS:
            raise InvalidInput(f"{where}: line {line}: '{text}' is no list of ranks; name the log as it was written")
        ranks.extend(range(low, high + 1))
    return tuple(ranks)


def _ranks_above(lines: list[_Line]) -> int:
    """Number of ranks that the summary above the table lists; 0 if there is no summary."""
    head = next((index for index, line in enumerate(lines) if line.cells[0] == "Rank"), None)
    if head is None:
        return 0
    listed = [int(line.cells[0]) for line in lines[head + 1 :] if len(line.cells) > 2 and line.cells[0].isdecimal()]
    return 1 + max(listed) if listed else 0


def _checked(rows: list[LoggedTable], ranks: int, where: str) -> list[LoggedTable]:
    """The rows, with unique names: if two tables of different shapes share a name, as in anonymised logs, the second gets a number.

    Raises:
        InvalidInput: a table occurs twice, or lies on a rank that does not exist.
    """
    seen: dict[str, LoggedTable] = {}
    for row in rows:
        name, number = row.name, 1
        while name in seen:
            other, number = seen[name], number + 1
            if (other.rows, other.dim) == (row.rows, row.dim):
                raise InvalidInput(
                    f"{where}: line {row.line}: table '{row.name}' stands in line {other.line} already; name a log in which every table "
                    "of a plan stands once"
                )
            name = f"{row.name}_{number}"
        seen[name] = replace(row, name=name)
        if max(row.ranks) >= ranks:
            raise InvalidInput(
                f"{where}: line {row.line}: table '{row.name}' lies on rank {max(row.ranks)}, but the plan has ranks 0 to "
                f"{ranks - 1}; name the log as it was written"
            )
    return list(seen.values())


def _in_batch(table: LoggedTable, batches: list[int], batch_size: int) -> LoggedTable:
    """The table, with lookups counted in samples of the step's batch if its features have separate batches."""
    if len(batches) != len(table.lookups) or set(batches) == {batch_size}:
        return table
    return replace(
        table, lookups=tuple(each * size / batch_size for each, size in zip(table.lookups, batches, strict=True))
    )


def _memory(rest: list[str]) -> tuple[float | None, float | None, float]:
    """Bytes of a device, bytes that the planner may fill, and bytes of dense layers and inputs among them."""

    def after(title: str) -> float | None:
        for index, text in enumerate(rest[:-1]):
            size = _SIZE.search(rest[index + 1]) if text == title else None
            if size:
                return float(size[1]) * 2**30
        return None

    reserved, planning = after("Reserved Memory:"), after("Planning Memory:")
    others = sum(after(title) or 0.0 for title in ("Dense Storage (per rank):", "KJT Storage (per rank):"))
    return (None if planning is None else planning + (reserved or 0.0)), planning, others
