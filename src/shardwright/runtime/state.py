"""State dicts by table, under TorchRec's names, for modules with any plan.

A table's tensor is given as the blocks that a rank holds. `torch.distributed.checkpoint` writes them as chunks of one tensor, and reads any
chunks into any blocks: another plan, another number of ranks, or TorchRec's DistributedModelParallel on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from shardwright.errors import InvalidInput

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    from shardwright.runtime.embedding import ShardedEmbeddings
    from shardwright.task.table import Table

_TORCHREC = {"sum": "momentum1", "momentum": "momentum1", "variance": "momentum2"}
"""TorchRec's names of our optimizer states."""


class Block(NamedTuple):
    """A block of a table's tensor.

    Attributes:
        offsets: its first element.
        tensor: its content.
        stored: where it is stored, if `tensor` is a copy.
        order: `(rows,)` row of the copy for each stored row.
    """

    offsets: tuple[int, ...]
    tensor: torch.Tensor
    stored: torch.Tensor | None = None
    order: torch.Tensor | None = None


class TableBlocks(torch.Tensor):
    """A table's tensor as one rank holds it; torch.distributed.checkpoint takes it as a tensor, but it does not support computation.

    Attributes:
        table: name of the table.
        blocks: the blocks on this rank: views of its storage, or copies if rows are stored in another order.
    """

    table: str
    blocks: Sequence[Block]

    @staticmethod
    def __new__(cls, name: str, shape: Sequence[int], like: torch.Tensor, blocks: Sequence[Block]) -> TableBlocks:
        """Wrap the blocks of a table's tensor of this shape, of the type and device of another tensor."""
        made: TableBlocks = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)
        made.table, made.blocks = name, blocks
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"TableBlocks({self.table!r}, {tuple(self.shape)}, {len(self.blocks)} blocks here)"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse operations that need the whole tensor."""
        if func is torch.ops.aten.detach.default:
            return args[0]
        if func is torch.ops.aten.clone.default:
            blocks = [Block(block.offsets, block.tensor.clone()) for block in args[0].blocks]
            return cls(args[0].table, args[0].shape, args[0], blocks)
        raise InvalidInput(
            f"{func} of a table of which a rank holds blocks: use its `blocks`, and torch.distributed.checkpoint to save or load it"
        )

    def __reduce_ex__(self, _: Any) -> Any:
        raise InvalidInput(f"table '{self.table}' is in blocks on many ranks; save it by torch.distributed.checkpoint")

    def copy_from(self, value: Any) -> str | None:
        """Copy another value of this tensor into the blocks; return the reason if that is impossible."""
        if isinstance(value, TableBlocks):
            given = {block.offsets: block.tensor for block in value.blocks}
            if value.shape != self.shape or any(block.offsets not in given for block in self.blocks):
                return (
                    f"table '{self.table}': the state holds other blocks than this rank; "
                    "change plans by torch.distributed.checkpoint, or by save_checkpoint and load_checkpoint"
                )
        elif type(value) not in (torch.Tensor, torch.nn.Parameter) or value.shape != self.shape:
            shape = tuple(getattr(value, "shape", ()))
            return (
                f"table '{self.table}': the state is a {type(value).__name__} of shape {shape}, must be a tensor of shape "
                f"{tuple(self.shape)}; read checkpoints of other modules by torch.distributed.checkpoint"
            )
        for offsets, tensor, stored, order in self.blocks:
            if isinstance(value, TableBlocks):
                tensor.copy_(given[offsets])
            else:
                tensor.copy_(value[tuple(slice(a, a + size) for a, size in zip(offsets, tensor.shape, strict=True))])
            if stored is not None:
                stored.copy_(tensor[order])
        return None

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(torch.Size(offsets), tensor.size()) for offsets, tensor, *_ in self.blocks]

    def __create_write_items__(self, fqn: str, _: object) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        return [
            WriteItem(
                MetadataIndex(fqn, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, TensorProperties.create_from_tensor(block.tensor), self.shape),
            )
            for chunk, block in zip(self.__create_chunk_list__(), self.blocks, strict=True)
        ]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        return next(block.tensor for block in self.blocks if torch.Size(block.offsets) == index.offset)


def weights_of(module: ShardedEmbeddings) -> dict[str, TableBlocks]:
    """The weights, by TorchRec's names of them.

    Raises:
        InvalidInput: a table counts its rows by hotness.
    """
    return {_weight_name(table): _blocks(module, table, "weights") for table in module.tables}


def optimizer_state_of(module: ShardedEmbeddings) -> dict[str, dict[str, TableBlocks]]:
    """By TorchRec's name of the weights and of the state, the optimizer's states."""
    states = module.storage.optimizer.states
    return {
        _weight_name(table): {f"{table.name}.{_TORCHREC[kind]}": _blocks(module, table, kind) for kind in states}
        for table in module.tables
    }


def _weight_name(table: Table) -> str:
    """TorchRec's name of a table's weights in an EmbeddingBagCollection or EmbeddingCollection."""
    return f"{'embedding_bags' if table.pooled else 'embeddings'}.{table.name}.weight"


def _blocks(module: ShardedEmbeddings, table: Table, kind: str) -> TableBlocks:
    """The blocks of a table's weights or of one of its optimizer states."""
    name, placement = table.name, module.placement
    if any(shard.row_order != "id" for shard in module.plan.by_table[name]):
        raise InvalidInput(
            f"table '{name}' counts its rows by hotness, and a state dict holds ranges of ids; use save_checkpoint and load_checkpoint"
        )
    part_of = {part.columns: index for index, part in enumerate(placement.parts) if part.table.name == name}
    parts = sorted(part_of)
    flat = kind != "weights" and module.storage.optimizer.by_row
    matrices = [module.storage.matrices(int(placement.group_of[part_of[its]]))[kind] for its in parts]
    blocks = []
    for index, shard in enumerate(placement.shards):
        if shard.table != name or module.rank not in shard.devices:
            continue
        numbers = np.flatnonzero(placement.ranges[0] == index)
        place, row = parts.index(shard.columns), shard.rows[0]
        rows = matrices[place][placement.slots_of_shard(index, module.rank)]
        offsets: tuple[int, ...] = (row, shard.columns[0])
        if flat:  # as in TorchRec, the row-wise states of column blocks follow each other
            rows, offsets = rows[:, 0], (place * table.rows + row,)
        if numbers.size == 1:
            blocks.append(Block(offsets, rows))
            continue
        keys = np.concatenate([placement.keys(its, 0, int(placement.ranges[1, its])) for its in numbers.tolist()])
        order = torch.from_numpy(keys - placement.base[part_of[shard.columns]] - row)
        copy = torch.empty_like(rows)
        copy[order] = rows
        blocks.append(Block(offsets, copy, rows, order))
    return TableBlocks(name, [table.rows * len(parts)] if flat else [table.rows, table.dim], matrices[0], blocks)
