"""Read jagged ids and return jagged rows, as mappings of tensors or as TorchRec's KeyedJaggedTensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch

from shardwright.errors import InvalidInput


class JaggedRows(NamedTuple):
    """The looked-up rows of one table.

    Attributes:
        values: `(n, dim)` fp32 rows of all samples, one after the other.
        lengths: `(samples,)` rows of each sample.
    """

    values: torch.Tensor
    lengths: torch.Tensor


Features: TypeAlias = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""By table, `(n,)` int64 ids and `(samples,)` lengths."""


@dataclass(frozen=True, eq=False)
class RankBatch:
    """The lookups of one rank in one step.

    Attributes:
        ids: `(n,)` ids, table after table.
        counts: lookups of each table.
        lengths: `(samples,)` for each table.
        error: why the features are not a valid batch; None if they are.
    """

    ids: torch.Tensor
    counts: list[int]
    lengths: list[torch.Tensor]
    error: str | None = None

    @classmethod
    def of(cls, features: Any, tables: Sequence[str], device: torch.device) -> RankBatch:
        """Read features. An error is kept in the batch, since all ranks must hear of it."""
        try:
            return cls._read(features, tables, device)
        except InvalidInput as error:
            return cls.failed(len(tables), device, str(error))
        except Exception as error:  # any error: the other ranks wait to hear of it
            problem = f"features cannot be read ({type(error).__name__}: {error}); give dense tensors on {device}"
            return cls.failed(len(tables), device, problem)

    @classmethod
    def _read(cls, features: Any, tables: Sequence[str], device: torch.device) -> RankBatch:
        parts = features if isinstance(features, Mapping) else _jagged_parts(features, tables)
        for table in tables:
            _check_part(parts, table, device)
        values = [parts[table][0] for table in tables]
        ids = torch.cat(values) if len(values) > 1 else values[0]
        lengths = [parts[table][1] for table in tables]
        counts = [one.numel() for one in values]
        _check_lengths(tables, counts, lengths)
        return cls(ids.to(device=device, dtype=torch.int64), counts, lengths)

    @classmethod
    def failed(cls, tables: int, device: torch.device, error: str) -> RankBatch:
        """Return a batch without lookups that carries the error."""
        empty = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(empty, [0] * tables, [empty] * tables, error)

    def result(self, tables: Sequence[str], rows: Sequence[torch.Tensor], like: Any) -> Mapping[str, Any]:
        """Return the rows by table, in the type that matches the features."""
        kind: Any = JaggedRows
        if not isinstance(like, Mapping):
            import torchrec

            kind = torchrec.JaggedTensor
        jagged = zip(tables, rows, self.lengths, strict=True)
        return {table: kind(values=one, lengths=lengths) for table, one, lengths in jagged}


def _jagged_parts(features: Any, tables: Sequence[str]) -> Features:
    """Return the ids and lengths of the tables in a KeyedJaggedTensor."""
    if not hasattr(features, "keys") or not hasattr(features, "lengths_or_none"):
        raise InvalidInput(
            f"features are a {type(features).__name__}, must be a KeyedJaggedTensor or a mapping from table to (ids, lengths)"
        )
    keys = list(features.keys())
    sizes = features.length_per_key()
    values = dict(zip(keys, features.values().split(sizes), strict=True))
    lengths = dict(zip(keys, features.lengths().split(features.stride_per_key()), strict=True))
    return {key: (values[key], lengths[key]) for key in keys if key in set(tables)}


def _check_part(features: Features, table: str, device: torch.device) -> None:
    """Check that ids and lengths of a table are tensors that can be read."""
    if table not in features:
        raise InvalidInput(
            f"features have no table '{table}'; every table of the module needs ids and lengths, if only empty ones"
        )
    part = features[table]
    if not isinstance(part, tuple | list) or len(part) != 2 or not all(isinstance(one, torch.Tensor) for one in part):
        raise InvalidInput(f"table '{table}': features must be a pair of tensors (ids, lengths)")
    allowed = dict.fromkeys(("cpu", device.type))
    for one, what in zip(part, ("ids", "lengths"), strict=True):
        if one.ndim != 1 or one.dtype not in (torch.int64, torch.int32):
            raise InvalidInput(
                f"table '{table}': {what} are {one.dtype} of shape {tuple(one.shape)}, must be int64 of shape (n,)"
            )
        if one.layout != torch.strided:
            raise InvalidInput(f"table '{table}': {what} are {one.layout}, must be torch.strided; call to_dense()")
        if one.device.type not in allowed:
            raise InvalidInput(
                f"table '{table}': {what} are on {one.device}, must be on {' or '.join(allowed)}; move them there"
            )


def _check_lengths(tables: Sequence[str], counts: Sequence[int], lengths: Sequence[torch.Tensor]) -> None:
    """Check that no length is negative and that lengths add up, with one copy to main memory for all tables."""
    if len({one.numel() for one in lengths}) == 1:
        by_table = torch.stack(list(lengths))
        found = torch.stack([by_table.sum(1), (by_table < 0).sum(1)]).tolist()
    else:
        found = torch.stack([torch.stack([one.sum(), (one < 0).sum()]) for one in lengths]).T.tolist()
    for table, count, total, negative in zip(tables, counts, *found, strict=True):
        if negative:
            raise InvalidInput(f"table '{table}': {negative} of its lengths are negative; a sample has at least 0 ids")
        if total != count:
            raise InvalidInput(f"table '{table}': its lengths add up to {total}, but it has {count} ids")
