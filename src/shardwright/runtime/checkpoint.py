"""Checkpoints that any plan on any number of ranks can load: rows by id, with their optimizer state.

A folder holds `manifest.json` and parts, safetensors files of bounded size. Every row is in one part, written by its owner. A part has
entries, rows of one table each: tensors `<entry>.ids`, `<entry>.weights`, and one for each optimizer state. The manifest is written last
and replaced in one step, so a folder holds the old checkpoint or the new one whenever a job ends. Reading and writing take one part in
memory.
"""

from __future__ import annotations

import secrets
import zlib
from pathlib import Path

import msgspec
import torch

from shardwright.errors import InvalidInput
from shardwright.files import write_atomically
from shardwright.runtime.checkpoint_parts import read_parts, written_parts
from shardwright.runtime.embedding import TieredEmbedding
from shardwright.runtime.manifest import FORMAT, NAME, Manifest, Part, SavedTable, check_fits, read_manifest

PART_BYTES = 32 * 2**20


def save_checkpoint(module: TieredEmbedding, folder: str | Path, *, part_bytes: int = PART_BYTES) -> None:
    """Write the weights and optimizer state of a module; a collective: all ranks must call it.

    Args:
        module: the module.
        folder: where to; all ranks must see the same one. A checkpoint that is there is replaced.
        part_bytes: about the largest size of a file.

    Raises:
        InvalidInput: the folder cannot be written to by some rank.
        ShardwrightError: replicas differ.
    """
    module.check_replicas()
    path, token = Path(folder), _common_token(module)
    module.ranks.together(lambda: _write_own(module, path, token, part_bytes))
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


def _write_own(module: TieredEmbedding, path: Path, token: str, part_bytes: int) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be made a folder ({error.strerror}); name another one") from error
    parts = []
    for number, (content, entries) in enumerate(written_parts(module, part_bytes)):
        name = f"rank-{module.rank}-part-{number}-{token}.safetensors"
        write_atomically(path / name, content)
        parts.append(Part(name, len(content), zlib.crc32(content), entries))
    write_atomically(_list_of(path, module.rank, token), msgspec.json.encode(parts))


def _list_of(path: Path, rank: int, token: str) -> Path:
    return path / f"rank-{rank}-{token}.json"


def _write_manifest(module: TieredEmbedding, path: Path, token: str) -> None:
    lists = [_list_of(path, rank, token) for rank in range(module.plan.task.topology.devices)]
    parts = [part for its in lists for part in msgspec.json.decode(its.read_bytes(), type=list[Part])]
    manifest = Manifest(FORMAT, module.plan.task.optimizer, int(module.storage.step), _tables(module), parts)
    write_atomically(path / NAME, msgspec.json.encode(manifest))
    kept = {part.file for part in parts}
    for old in (*path.glob("rank-*-part-*.safetensors"), *path.glob("rank-*.json")):
        if old.name not in kept:
            old.unlink()


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
