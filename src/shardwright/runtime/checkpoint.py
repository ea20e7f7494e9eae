"""Checkpoints that any plan on any number of ranks can load: rows by id, with their optimizer state.

A folder holds `manifest.json` and parts, safetensors files of bounded size. Every row is in one part, written by its owner. A part has
entries, rows of one table each: tensors `<entry>.ids`, `<entry>.weights`, and one for each optimizer state. The manifest is written last
and replaced in one step, so a folder holds the old checkpoint or the new one whenever a job ends. Reading and writing take one part in
memory. What a rank writes is planned before: a manifest that would be too large to be read is refused while the old checkpoint is whole.
"""

from __future__ import annotations

import secrets
import zlib
from pathlib import Path

import msgspec
import torch

from shardwright.errors import InvalidInput
from shardwright.files import write_atomically
from shardwright.runtime.checkpoint_parts import Content, largest_entries, part_of, planned_parts, read_parts
from shardwright.runtime.embedding import TieredEmbedding
from shardwright.runtime.manifest import (
    FORMAT,
    NAME,
    Manifest,
    Part,
    SavedTable,
    check_fits,
    check_readable,
    measure,
    read_manifest,
)

PART_BYTES = 32 * 2**20


def save_checkpoint(module: TieredEmbedding, folder: str | Path, *, part_bytes: int = PART_BYTES) -> None:
    """Write the weights and optimizer state of a module; a collective: all ranks must call it.

    Args:
        module: the module.
        folder: where to; all ranks must see the same one. A checkpoint that is there is replaced.
        part_bytes: about the largest size of a file; where that would make more than about 65,536 files, they are larger.

    Raises:
        InvalidInput: the folder cannot be written to by some rank, or the list of its files would be too long to be read.
        ShardwrightError: replicas differ.
    """
    module.check_replicas()
    path, token = Path(folder), _common_token(module)
    parts = planned_parts(module.storage, part_bytes)
    _must_be_readable(module, parts, token)
    module.ranks.together(lambda: _write_own(module, path, token, parts))
    if module.rank == 0:
        module.ranks.together(lambda: _write_manifest(module, path, token))
    else:
        module.ranks.together(lambda: None)


def load_checkpoint(module: TieredEmbedding, folder: str | Path) -> None:
    """Load weights and optimizer state that a module of any plan has saved; a collective: all ranks must call it.

    Where this fails, the module's rows are some old and some new ones: load another checkpoint before going on.

    Args:
        module: a module of the same tables and optimizer.
        folder: of the checkpoint.

    Raises:
        InvalidInput: there is no whole checkpoint, or it is of other tables or of another optimizer.
    """
    module.ranks.together(lambda: _read(module, Path(folder)))
    module.check_replicas()


def _common_token(module: TieredEmbedding) -> str:
    """A name that no earlier checkpoint has, the same on all ranks."""
    return module.ranks.texts(secrets.token_hex(8))[0]


def _must_be_readable(module: TieredEmbedding, parts: list[Content], token: str) -> None:
    """End on all ranks before anything is written if nobody could read the manifest."""
    own = [
        Part(_name_of(module.rank, number, token), 2**62, 2**32 - 1, largest_entries(module.storage, content))
        for number, content in enumerate(parts)
    ]
    sizes = measure(msgspec.json.encode(own))
    bytes_, values = module.ranks.gathered(torch.tensor(sizes)).sum(0).tolist()
    head_bytes, head_values = measure(msgspec.json.encode(_manifest(module, [])))
    check_readable(bytes_ + head_bytes, values + head_values)


def _write_own(module: TieredEmbedding, path: Path, token: str, parts: list[Content]) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be made a folder ({error.strerror}); name another one") from error
    written = []
    for number, content in enumerate(parts):
        name = _name_of(module.rank, number, token)
        data, entries = part_of(module, content)
        write_atomically(path / name, data)
        written.append(Part(name, len(data), zlib.crc32(data), entries))
    write_atomically(_list_of(path, module.rank, token), msgspec.json.encode(written))


def _name_of(rank: int, number: int, token: str) -> str:
    return f"rank-{rank}-part-{number}-{token}.safetensors"


def _list_of(path: Path, rank: int, token: str) -> Path:
    return path / f"rank-{rank}-{token}.json"


def _write_manifest(module: TieredEmbedding, path: Path, token: str) -> None:
    lists = [_list_of(path, rank, token) for rank in range(module.plan.task.topology.devices)]
    parts = [part for its in lists for part in msgspec.json.decode(its.read_bytes(), type=list[Part])]
    write_atomically(path / NAME, msgspec.json.encode(_manifest(module, parts)))
    kept = {part.file for part in parts}
    for old in (*path.glob("rank-*-part-*.safetensors"), *path.glob("rank-*.json")):
        if old.name not in kept:
            old.unlink()


def _manifest(module: TieredEmbedding, parts: list[Part]) -> Manifest:
    return Manifest(FORMAT, module.plan.task.optimizer, int(module.storage.step), _tables(module), parts)


def _tables(module: TieredEmbedding) -> list[SavedTable]:
    return [SavedTable(table.name, table.rows, table.dim, table.dtype) for table in module.placement.tables]


def _read(module: TieredEmbedding, path: Path) -> None:
    manifest = read_manifest(path)
    check_fits(manifest, _tables(module), module.plan.task.optimizer, path)
    with torch.no_grad():
        missing = read_parts(module, path, manifest.parts)
    if missing:
        name, rows = missing
        raise InvalidInput(
            f"{path}: {rows} rows of table '{name}' are in no part; take a checkpoint that was written whole"
        )
    module.storage.step.fill_(manifest.step)
