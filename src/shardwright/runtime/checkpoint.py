"""Checkpoints that any plan on any number of ranks can load: rows by id, with their optimizer state.

A folder holds `manifest.json` and parts: safetensors files of bounded size. The owner of a row writes it, to one part. A part has entries
of rows of some columns of one table: tensors `<entry>.ids`, `<entry>.weights`, and one for each optimizer state. A module with other column
cuts takes the columns that it holds; a row-wise state, which is a mean over columns, is then the mean over the saved blocks. The manifest
is written last and replaced in one step, so the folder holds either the old or the new checkpoint, even if a job ends during writing.
Reading and writing keep one part in memory. Each rank plans its parts first, so a manifest too large to be read is refused before the old
checkpoint is touched.
"""

from __future__ import annotations

import secrets
import zlib
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from shardwright.errors import InvalidInput
from shardwright.files import MAX_BYTES, MAX_VALUES, parse_document, read_bytes, write_atomically
from shardwright.runtime.embedding import ShardedEmbeddings
from shardwright.runtime.lookup import Router
from shardwright.runtime.placement import Part as TablePart
from shardwright.runtime.storage import Cut, Storage
from shardwright.schema import Place, check_format, convert

PART_BYTES = 32 * 2**20
MOST_PARTS = 2**16
"""Aim for at most this many parts: large tables get larger parts, so that the manifest stays small enough to be read."""
FORMAT = 1
_NAME = "manifest.json"
_NOWHERE = -(2**62)  # the slot of a row that this rank does not hold


class RowsOfTable(msgspec.Struct, forbid_unknown_fields=True):
    """Rows of one table in a part: their number, smallest id and largest id, and their columns if these are not all."""

    table: str
    rows: int
    first: int
    last: int
    columns: tuple[int, int] | None = None


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """A file with some of the rows."""

    file: Annotated[str, msgspec.Meta(pattern=r"\Arank-\d+-part-\d+-[0-9a-f]{16}\.safetensors\Z")]
    bytes: int
    crc32: int
    entries: list[RowsOfTable]


class SavedTable(msgspec.Struct, forbid_unknown_fields=True):
    """A table whose rows are in the checkpoint."""

    name: str
    rows: int
    dim: int
    dtype: str


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """The content of `manifest.json`: a whole checkpoint."""

    format: int
    optimizer: str
    step: int
    tables: list[SavedTable]
    parts: list[Part]


def save_checkpoint(module: ShardedEmbeddings, folder: str | Path, *, part_bytes: int = PART_BYTES) -> None:
    """Write the weights and optimizer state of a module; a collective: all ranks must call it.

    Args:
        module: the module.
        folder: where to write; all ranks must see the same folder. An existing checkpoint there is replaced.
        part_bytes: approximate largest size of a file; files are larger if there would otherwise be more than about 65,536 of them.

    Raises:
        InvalidInput: some rank cannot write to the folder, or the list of its files would be too long to read.
        ShardwrightError: replicas differ.
    """
    module.check_replicas()
    path, token = Path(folder), module.ranks.texts(secrets.token_hex(8))[0]  # a name that no earlier checkpoint has
    parts = [
        (largest_part(module.storage, f"rank-{module.rank}-part-{number}-{token}.safetensors", content), content)
        for number, content in enumerate(planned_parts(module.storage, part_bytes))
    ]
    _must_be_readable(module, [part for part, _ in parts])
    module.ranks.together(lambda: _write_own(module, path, token, parts))
    module.ranks.together(lambda: _write_manifest(module, path, token) if module.rank == 0 else None)


def load_checkpoint(module: ShardedEmbeddings, folder: str | Path) -> None:
    """Load weights and optimizer state that a module with any plan saved; a collective: all ranks must call it.

    If this fails, the module holds a mixture of old and new rows: load another checkpoint before going on.

    Args:
        module: a module of the same tables and optimizer.
        folder: folder of the checkpoint.

    Raises:
        InvalidInput: there is no whole checkpoint, or its tables or optimizer differ from the module's.
    """
    module.ranks.together(lambda: _read(module, Path(folder)))
    module.check_replicas()


def planned_parts(storage: Storage, part_bytes: int) -> list[list[Cut]]:
    """Divide the rows that a rank owns into the parts that it will write.

    Args:
        storage: storage of the rank.
        part_bytes: approximate largest size of a part; larger if all ranks together would have more than about `MOST_PARTS` parts.
    """
    placement = storage.placement
    row_bytes = [
        8 + sum(matrix.shape[1] * matrix.element_size() for matrix in storage.matrices(group).values())  # 8: the id
        for group in range(len(placement.groups))
    ]
    total = int(np.diff(placement.base) @ np.array(row_bytes)[placement.group_of])
    part_bytes = max(part_bytes, -(-total // MOST_PARTS))
    parts: list[list[Cut]] = []
    size = 0
    for cut in storage.cuts(part_bytes, owned=True):
        more = cut.rows * row_bytes[cut.group]
        if not parts or size + more > part_bytes:
            parts.append([])
            size = 0
        parts[-1].append(cut)
        size += more
    return parts


def largest_part(storage: Storage, name: str, content: list[Cut]) -> Part:
    """Return a part whose manifest entry is at least as large as that of the part with this content."""
    entries = []
    for cut in content:
        part = storage.placement.parts[cut.part]
        columns = None if part.dim == part.table.dim else part.columns
        entries.append(RowsOfTable(part.table.name, cut.rows, part.table.rows - 1, part.table.rows - 1, columns))
    return Part(name, 2**62, 2**32 - 1, entries)


def measure(text: bytes) -> tuple[int, int]:
    """Return the size of a manifest, or of a piece of one, as `read_manifest` sees it: bytes, and values as `parse_json` counts them."""
    return len(text), sum(text.count(sign) for sign in (b",", b"[", b"{"))


def check_readable(size: int, values: int) -> None:
    """Raise InvalidInput if a manifest of so many bytes and values is too large to be read."""
    if size > MAX_BYTES or values > MAX_VALUES:
        raise InvalidInput(
            f"the checkpoint's manifest may take {size} bytes and {values} values, and {MAX_BYTES} and {MAX_VALUES} is the most; "
            "spread the tables over several modules (tables=[...]) and give each its own folder"
        )


def _must_be_readable(module: ShardedEmbeddings, parts: list[Part]) -> None:
    """Raise an error on all ranks, before anything is written, if the manifest would be too large to read."""
    all_ranks = module.ranks.gathered(torch.tensor(measure(msgspec.json.encode(parts)))).sum(0)
    head = torch.tensor(measure(msgspec.json.encode(_manifest(module, []))))
    check_readable(*(all_ranks + head).tolist())


def _write_own(module: ShardedEmbeddings, path: Path, token: str, parts: list[tuple[Part, list[Cut]]]) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be made a folder ({error.strerror}); name another one") from error
    for part, content in parts:
        write_atomically(path / part.file, _filled(module, part, content))
    write_atomically(_list_of(path, module.rank, token), msgspec.json.encode([part for part, _ in parts]))


def _list_of(path: Path, rank: int, token: str) -> Path:
    return path / f"rank-{rank}-{token}.json"


def _filled(module: ShardedEmbeddings, part: Part, content: list[Cut]) -> bytes:
    """Return the content of a part's file, and set what `largest_part` left open."""
    tensors: dict[str, torch.Tensor] = {}
    for place, (cut, entry) in enumerate(zip(content, part.entries, strict=True)):
        keys = module.placement.keys(cut.number, cut.start, cut.stop)
        ids = module.ranking.ids(module.placement, cut.part, keys)
        for kind, matrix in module.storage.matrices(cut.group).items():
            tensors[f"{place}.{kind}"] = matrix[cut.slots].cpu().contiguous()
        tensors[f"{place}.ids"] = torch.from_numpy(ids)
        entry.first, entry.last = int(ids.min()), int(ids.max())
    data = save(tensors)
    part.bytes, part.crc32 = len(data), zlib.crc32(data)
    return data


def _write_manifest(module: ShardedEmbeddings, path: Path, token: str) -> None:
    lists = [_list_of(path, rank, token) for rank in range(module.plan.task.topology.devices)]
    parts = [part for its in lists for part in msgspec.json.decode(its.read_bytes(), type=list[Part])]
    write_atomically(path / _NAME, msgspec.json.encode(_manifest(module, parts)))
    kept = {part.file for part in parts}
    for old in (*path.glob("rank-*-part-*.safetensors"), *path.glob("rank-*.json")):
        if old.name not in kept:
            old.unlink()


def _manifest(module: ShardedEmbeddings, parts: list[Part]) -> Manifest:
    return Manifest(FORMAT, module.plan.task.optimizer, int(module.storage.step), _tables(module), parts)


def _tables(module: ShardedEmbeddings) -> list[SavedTable]:
    return [SavedTable(table.name, table.rows, table.dim, table.dtype) for table in module.tables]


def _read(module: ShardedEmbeddings, path: Path) -> None:
    document, place = parse_document(path / _NAME, "checkpoint's manifest"), Place(str(path / _NAME))
    check_format(document, place, "checkpoint", FORMAT)
    manifest = convert(document, Manifest, place)
    _check_fits(manifest, _tables(module), module.plan.task.optimizer, path)
    with torch.no_grad():
        _read_parts(module, path, manifest.parts)
    module.storage.step.fill_(manifest.step)


def _check_fits(manifest: Manifest, tables: list[SavedTable], optimizer: str, folder: Path) -> None:
    """Refuse a checkpoint of another optimizer, or one without a table of the module in the same shape and type."""
    if manifest.optimizer != optimizer:
        raise InvalidInput(
            f"{folder}: is of optimizer {manifest.optimizer}, the module's is {optimizer}; plan with the same one"
        )
    saved = {table.name: table for table in manifest.tables}
    for table in tables:
        held = saved.get(table.name)
        if held != table:
            has = "has no such table" if held is None else f"has {held.rows} rows × {held.dim} {held.dtype}"
            raise InvalidInput(
                f"table '{table.name}' has {table.rows} rows × {table.dim} {table.dtype}, the checkpoint {folder} {has}; "
                "load a checkpoint of the same tables"
            )


def _read_parts(module: ShardedEmbeddings, folder: Path, parts: list[Part]) -> None:
    """Load the rows that a rank holds; refuse parts that do not hold all of them."""
    placement, held = module.placement, module.placement.held_by(module.rank)
    slots = np.full(placement.ranges.shape[1], _NOWHERE, dtype=np.int64)
    slots[held] = placement.slots(held, module.rank)
    router = Router(placement, slots, torch.device("cpu"))
    for group in range(len(placement.groups)):
        for matrix in module.storage.states(group):
            matrix.zero_()  # a row-wise state is computed from those of all columns
    missing = np.bincount(
        placement.part_of_range[held], weights=placement.ranges[1, held], minlength=len(placement.parts)
    ) * [part.dim for part in placement.parts]
    spans = _spans(module)
    for part in parts:
        wanted = sorted(
            {
                (place, index, columns)
                for place, entry in enumerate(part.entries)
                for index, start, stop in spans.get(entry.table, ())
                if entry.first < stop and entry.last >= start
                if (columns := _common(entry.columns, placement.parts[index]))
            }
        )
        tensors = _tensors(folder / part.file, part) if wanted else {}
        for place, index, columns in wanted:
            rows = _take(module, tensors, place, index, columns, part.entries[place].columns, router)
            missing[index] -= rows * (columns[1] - columns[0])
    lacking = np.flatnonzero(missing)
    if lacking.size:
        lacks = placement.parts[lacking[0]]
        name, rows = lacks.title, int(-(-missing[lacking[0]] // lacks.dim))
        raise InvalidInput(
            f"{folder}: {rows} rows of table '{name}' are in no part; take a checkpoint that was written whole"
        )


def _common(columns: tuple[int, int] | None, part: TablePart) -> tuple[int, int] | None:
    """The columns of an entry that a part has; None without any."""
    start, stop = columns or (0, part.table.dim)
    common = max(start, part.columns[0]), min(stop, part.columns[1])
    return common if common[0] < common[1] else None


def _spans(module: ShardedEmbeddings) -> dict[str, list[tuple[int, int, int]]]:
    """By table, the parts of which this rank holds rows, with the half-open range of their ids; all ids if a rank map orders them."""
    spans: dict[str, list[tuple[int, int, int]]] = {}
    for part, shard in zip(module.placement.part_of_shard.tolist(), module.placement.shards, strict=True):
        if module.rank in shard.devices:
            ranked = module.ranking.maps[shard.table]
            ids = (0, ranked.rows) if ranked.hottest.size else shard.tier or shard.rows
            spans.setdefault(shard.table, []).append((part, *ids))
    return spans


def _tensors(path: Path, part: Part) -> dict[str, torch.Tensor]:
    content = read_bytes(path, "part of a checkpoint, whose folder must be whole", None)
    if len(content) != part.bytes or zlib.crc32(content) != part.crc32:
        raise InvalidInput(
            f"{path}: is damaged: its {len(content)} bytes or their checksum differ from the {part.bytes} bytes that were saved; "
            "load another checkpoint"
        )
    try:
        return load(content)
    except SafetensorError as error:
        raise InvalidInput(f"{path}: is no safetensors file ({error}); load another checkpoint") from error


def _take(
    module: ShardedEmbeddings,
    tensors: dict[str, torch.Tensor],
    place: int,
    index: int,
    columns: tuple[int, int],
    saved: tuple[int, int] | None,
    router: Router,
) -> int:
    """Load the rows of an entry that this rank holds, in the columns that it shares with a part; returns their number.

    `saved` are the columns of the entry, None for all; the router gives the slots of rows that are held, and negative ones for others.
    """
    placement, part = module.placement, module.placement.parts[index]
    start, stop = saved or (0, part.table.dim)
    matrices = module.storage.matrices(int(placement.group_of[index]))
    by_row = {kind for kind in matrices if kind != "weights" and module.storage.optimizer.by_row}
    ids = tensors.get(f"{place}.ids", torch.zeros(0, 0))
    shapes: dict[str, tuple[int, ...]] = {"ids": (ids.numel(),)}
    shapes |= {kind: (ids.numel(), 1 if kind in by_row else stop - start) for kind in matrices}
    for kind, shape in shapes.items():
        tensor = tensors.get(f"{place}.{kind}")
        if tensor is None or tuple(tensor.shape) != shape:
            raise InvalidInput(f"table '{part.title}': a part has no {kind} of shape {shape}; load another checkpoint")
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < part.table.rows:
        raise InvalidInput(
            f"table '{part.title}': a part has ids from {int(ids.min())} to {int(ids.max())}; load another checkpoint"
        )
    keys = module.ranking.maps[part.table.name].ranks(ids.numpy()) + placement.base[index]
    slots = router.codes(torch.from_numpy(keys))
    mine = (slots >= 0).nonzero().flatten()
    into = slots[mine]
    theirs, ours = (slice(columns[0] - first, columns[1] - first) for first in (start, part.columns[0]))
    for kind, matrix in matrices.items():
        loaded = tensors[f"{place}.{kind}"][mine].to(matrix)
        if kind in by_row:
            matrix.index_add_(0, into.to(matrix.device), loaded * ((columns[1] - columns[0]) / part.dim))
        else:
            matrix[:, ours].index_copy_(0, into.to(matrix.device), loaded[:, theirs])
    return mine.numel()
