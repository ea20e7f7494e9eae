"""The rank maps of a plan: which it needs, and the file in which they lie beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shardwright.errors import InvalidInput
from shardwright.files import is_stream
from shardwright.schema import Place
from shardwright.sharding.layout import RowLayout
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.rank_map_files import load_rank_maps, rank_map_bytes, save_rank_maps
from shardwright.sharding.shard import Shard
from shardwright.task.table import Table

if TYPE_CHECKING:
    from shardwright.sharding.plan import Plan

ENDING = ".ranks.safetensors"

_DEALT_ROUNDS = 64


class RankMapsEntry(msgspec.Struct, forbid_unknown_fields=True):
    """What a plan file says of its rank maps.

    Attributes:
        file: name of the file beside it.
        sha256: of its content, in hexadecimal digits.
    """

    file: str
    sha256: str


def attached(plan: Plan, maps: Mapping[str, RankMap]) -> dict[str, RankMap]:
    """The maps of the plan's tables in order of hotness, cut to the ranks that it tells apart.

    Raises:
        InvalidInput: a map is of another number of rows than its table.
    """
    result = {}
    for table in plan.task.tables:
        shards = plan.by_table[table.name]
        if table.name not in maps or shards[0].row_order != "hotness":
            continue
        found = maps[table.name]
        check_rows(found, table)
        result[table.name] = found.trimmed(told_apart(shards))
    return result


def check_rows(found: RankMap, table: Table) -> None:
    """Check that a rank map is of as many rows as its table has.

    Raises:
        InvalidInput: it is not.
    """
    if found.rows != table.rows:
        raise InvalidInput(
            f"rank map of table '{table.name}': is of {found.rows} rows, the table has {table.rows}; profile the table anew with "
            "--rank-maps, and plan with the rows of that profile"
        )


def told_apart(shards: Sequence[Shard]) -> int:
    """How many ranks the plan of one table tells apart: all above its coldest rows.

    Where those are dealt out, also the hottest of them, 64 to a block: they matter for an even share. Whichever block gets
    which of the others makes no difference.
    """
    layout = RowLayout.of(shards)
    start, parts = int(layout.starts[-1]), int(layout.parts[-1])
    return start + (_DEALT_ROUNDS * parts if parts > 1 else 0)


def rank_maps_entry(plan: Plan, path: Path) -> RankMapsEntry:
    """What the plan file at `path` says of the plan's rank maps."""
    return RankMapsEntry(_beside(path).name, hashlib.sha256(rank_map_bytes(plan.rank_maps)).hexdigest())


def save_beside(plan: Plan, path: Path) -> None:
    """Write the rank maps of a plan beside its plan file; atomic.

    Raises:
        InvalidInput: the file cannot be written, or `path` is a pipe or device, beside which no file belongs, or its name is not UTF-8.
    """
    if is_stream(path):
        raise InvalidInput(f"{path}: is no file, and a plan with rank maps is two files; name a file with -o")
    if any("\ud800" <= character <= "\udfff" for character in path.stem):  # bytes that are no text
        raise InvalidInput(
            f"{path}: its name is not UTF-8, and a plan with rank maps holds it as text; name another file with -o"
        )
    save_rank_maps(plan.rank_maps, _beside(path))


def load_beside(plan: Plan, path: Path, entry: RankMapsEntry) -> Plan:
    """The plan with the rank maps that its plan file names.

    Raises:
        InvalidInput: the file is missing, damaged or another one, or holds maps that the plan has no use for.
    """
    place = Place(str(path), "rank_maps")
    if Path(entry.file).name != entry.file or not entry.file.endswith(ENDING) or "\0" in entry.file:
        raise InvalidInput(
            f"{place.at('file')}: {entry.file!r} must be the name of a file beside the plan, ending in {ENDING}"
        )
    maps = load_rank_maps(path.with_name(entry.file), entry.sha256)
    with place.naming():
        strangers = sorted(maps.keys() - {shard.table for shard in plan.shards if shard.row_order == "hotness"})
        if strangers:
            raise InvalidInput(
                f"{entry.file} has a map for '{strangers[0]}', of which the plan has no rows in order of hotness; plan again"
            )
        return replace(plan, rank_maps=attached(plan, maps))


def _beside(path: Path) -> Path:
    return path.with_name(path.stem + ENDING)
