"""The parts of a checkpoint: files of some rows each, written and read one after the other."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from shardwright.errors import InvalidInput
from shardwright.files import read_bytes
from shardwright.runtime.embedding import TieredEmbedding
from shardwright.runtime.manifest import Entry, Part
from shardwright.runtime.optimizers import STATES
from shardwright.runtime.placement import Ints
from shardwright.runtime.storage import Cut, Storage

Content: TypeAlias = list[Cut]
"""The rows of one part."""

MOST_PARTS = 2**16
"""About the most parts of a checkpoint: those of large tables are larger, lest the manifest become too large to be read."""


def planned_parts(storage: Storage, part_bytes: int) -> list[Content]:
    """What each part has that a rank has to write: the rows it owns.

    Args:
        storage: of the rank.
        part_bytes: about the most of a part; more where all ranks together would have more than about `MOST_PARTS`.
    """
    placement = storage.placement
    groups = [_row_bytes(storage, group) for group in range(len(placement.groups))]
    total = sum(table.rows * groups[group] for table, group in zip(placement.tables, placement.group_of, strict=True))
    part_bytes = max(part_bytes, -(-total // MOST_PARTS))
    parts: list[Content] = []
    size = 0
    for cut in storage.cuts(part_bytes, owned=True):
        more = cut.rows * groups[cut.group]
        if not parts or size + more > part_bytes:
            parts.append([])
            size = 0
        parts[-1].append(cut)
        size += more
    return parts


def _row_bytes(storage: Storage, group: int) -> int:
    """Bytes of a row of a group in a part: its id, weights and states."""
    return 8 + sum(matrix.shape[1] * matrix.element_size() for matrix in storage.matrices(group))


def largest_entries(storage: Storage, content: Content) -> list[Entry]:
    """Entries that take at least as much of the manifest as those of a part will."""
    tables = [storage.placement.tables[cut.table] for cut in content]
    return [
        Entry(table.name, cut.rows, table.rows - 1, table.rows - 1) for table, cut in zip(tables, content, strict=True)
    ]


def part_of(module: TieredEmbedding, content: Content) -> tuple[bytes, list[Entry]]:
    """The content and the list of entries of a part."""
    placement, storage = module.placement, module.storage
    tensors: dict[str, torch.Tensor] = {}
    entries: list[Entry] = []
    for place, cut in enumerate(content):
        ids = module.ranking.ids(placement, cut.table, placement.keys(cut.number, cut.start, cut.stop))
        for name, matrix in zip(("weights", *STATES[storage.optimizer]), storage.matrices(cut.group), strict=True):
            tensors[f"{place}.{name}"] = matrix[cut.slots].cpu().contiguous()
        tensors[f"{place}.ids"] = torch.from_numpy(ids)
        entries.append(Entry(placement.tables[cut.table].name, ids.size, int(ids.min()), int(ids.max())))
    return save(tensors), entries


def read_parts(module: TieredEmbedding, folder: Path, parts: list[Part]) -> tuple[str, int] | None:
    """Load the rows that a rank holds.

    Returns:
        A table that lacks rows, and how many; None if all are there.

    Raises:
        InvalidInput: a part is missing, damaged, or not what the manifest says.
    """
    placement, rank = module.placement, module.rank
    held = placement.held_by(rank)
    first = np.full(placement.ranges.shape[1], -1, dtype=np.int64)
    first[held] = placement.slots(held, rank)
    missing = np.bincount(
        placement.table_of_shard[placement.ranges[0, held]],
        weights=placement.ranges[1, held],
        minlength=len(placement.tables),
    )
    number = {table.name: index for index, table in enumerate(placement.tables)}
    spans = _spans(module)
    for part in parts:
        wanted = [(place, number[entry.table]) for place, entry in enumerate(part.entries) if entry.table in number]
        wanted = [
            (place, table)
            for place, table in wanted
            if part.entries[place].first <= spans[table][1] and part.entries[place].last >= spans[table][0]
        ]
        if wanted:
            tensors = _tensors(folder / part.file, part)
            for place, table in wanted:
                missing[table] -= _take(module, tensors, place, table, first)
    lacking = np.flatnonzero(missing)
    return (placement.tables[lacking[0]].name, int(missing[lacking[0]])) if lacking.size else None


def _tensors(path: Path, part: Part) -> dict[str, torch.Tensor]:
    content = read_bytes(path, "part of a checkpoint, whose folder must be whole", None)
    if len(content) != part.bytes or zlib.crc32(content) != part.crc32:
        raise InvalidInput(
            f"{path}: has {len(content)} bytes, or others than the {part.bytes} that were written; take another checkpoint"
        )
    try:
        return load(content)
    except SafetensorError as error:
        raise InvalidInput(f"{path}: is no safetensors file ({error}); take another checkpoint") from error


def _take(module: TieredEmbedding, tensors: dict[str, torch.Tensor], place: int, table: int, first: Ints) -> int:
    """Load the rows of one entry that this rank holds, and say how many they are."""
    placement = module.placement
    group, name = int(placement.group_of[table]), placement.tables[table].name
    matrices = dict(zip(("weights", *STATES[module.storage.optimizer]), module.storage.matrices(group), strict=True))
    found = {kind: tensors.get(f"{place}.{kind}") for kind in ("ids", *matrices)}
    rows = 0 if found["ids"] is None else found["ids"].numel()
    for kind, tensor in found.items():
        shape = (rows,) if kind == "ids" else (rows, matrices[kind].shape[1])
        if tensor is None or tuple(tensor.shape) != shape:
            raise InvalidInput(f"table '{name}': a part has no {kind} of shape {shape}; take another checkpoint")
    ids = found.pop("ids")
    assert ids is not None
    if rows and not 0 <= int(ids.min()) <= int(ids.max()) < placement.tables[table].rows:
        raise InvalidInput(
            f"table '{name}': a part has ids from {int(ids.min())} to {int(ids.max())}; take another checkpoint"
        )
    keys = module.ranking.maps[name].ranks(ids.numpy()) + placement.base[table]
    ranges, places = placement.locate(keys)
    mine = np.flatnonzero(first[ranges] >= 0)
    slots = torch.from_numpy(first[ranges[mine]] + places[mine])
    for kind, tensor in found.items():
        assert tensor is not None
        matrix = matrices[kind]
        matrix.index_copy_(0, slots.to(matrix.device), tensor[torch.from_numpy(mine)].to(matrix))
    return int(mine.size)


def _spans(module: TieredEmbedding) -> list[tuple[int, int]]:
    """By table, the smallest and largest id that this rank may hold; where ids are ranked, all of them."""
    spans: list[tuple[int, int]] = []
    placement = module.placement
    held = placement.held_by(module.rank)
    for index, table in enumerate(placement.tables):
        own = held[placement.table_of_shard[placement.ranges[0, held]] == index]
        own = own[placement.ranges[1, own] > 0]
        if not own.size:
            spans.append((0, -1))
        elif module.ranking.maps[table.name].hottest.size:
            spans.append((0, table.rows - 1))
        else:
            ends = [
                placement.keys(one, place, place + 1)[0]
                for one in own.tolist()
                for place in (0, placement.ranges[1, one] - 1)
            ]
            spans.append((int(min(ends) - placement.base[index]), int(max(ends) - placement.base[index])))
    return spans
