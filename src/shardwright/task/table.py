"""One embedding table of a model."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from shardwright.errors import InvalidInput
from shardwright.task.access import AccessProfile
from shardwright.task.quantities import checked_flag, checked_name, checked_number, checked_whole, listed

Dtype: TypeAlias = Literal["fp32", "fp16", "int8"]
MAX_ELEMENTS = 2**50
"""Most elements of a table, and of one table's activations in a step. Sums over a task then stay exact in 64 bits and in floats."""
_MOST_RANGES, _SHARE_ERROR = 1024, 1e-4
MAX_FEATURES = 2**16
"""Most features that share a table."""

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "int8": 1}
_DTYPES = {"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16"}
_DTYPES |= {f"torch.{name}": dtype for name, dtype in (*_DTYPES.items(), ("int8", "int8"))}
SCALE_BYTES = 8
"""Bytes of the scale and bias of each row of int8 weights, as FBGEMM stores them."""

UNIFORM = AccessProfile.uniform(1)
"""Placeholder for uniform access over all rows of the table that gets it."""


@dataclass(frozen=True)
class Table:
    """An embedding table and how it is used.

    Attributes:
        name: unique within a task.
        rows: number of rows (the hash size).
        dim: columns (the embedding dimension).
        pooling: pooling factor, the mean number of lookups per sample by all features together. Given as a list, one number for each
            feature: features share the table, and each has its own outputs.
        pooled: whether the looked-up rows of a sample are summed; False marks a sequence table.
        access: how accesses spread over the rows; uniform unless given.
        dtype: type of the weights; int8 weights have a scale and a bias per row.
        poolings: mean lookups per sample by each feature, made from `pooling`. A new `pooling` in `replace` scales those of all features,
            unless it is a list.
        weighted: whether every lookup has a weight, which travels with its id.
        id_shares: shares of the lookups that fall on equal ranges of consecutive ids; empty if hot ids lie scattered or the distribution is
            unknown.
    """

    name: str
    rows: int
    dim: int
    pooling: float = 1.0
    pooled: bool = True
    access: AccessProfile = UNIFORM
    dtype: Dtype = "fp32"
    poolings: tuple[float, ...] = dataclasses.field(default=(), kw_only=True)
    weighted: bool = dataclasses.field(default=False, kw_only=True)
    id_shares: tuple[float, ...] = dataclasses.field(default=(), kw_only=True)

    if TYPE_CHECKING:  # `pooling` is read as a number only

        def __init__(
            self,
            name: str,
            rows: int,
            dim: int,
            pooling: float | Sequence[float] = 1.0,
            pooled: bool = True,
            access: AccessProfile = UNIFORM,
            dtype: Dtype = "fp32",
            *,
            poolings: tuple[float, ...] = (),
            weighted: bool = False,
            id_shares: Sequence[float] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise InvalidInput(f"table name {self.name!r} must be printable text of at least one character")
        self._check_shape()
        object.__setattr__(self, "poolings", self._by_feature())
        object.__setattr__(self, "pooling", sum(self.poolings))
        for flag in ("pooled", "weighted"):
            object.__setattr__(self, flag, checked_flag(getattr(self, flag), f"table '{self.name}': {flag}"))
        object.__setattr__(self, "dtype", checked_name(self.dtype, f"table '{self.name}': dtype", DTYPE_BYTES, _DTYPES))
        object.__setattr__(self, "id_shares", self._checked_shares())
        self._fit_access()

    def _checked_shares(self) -> tuple[float, ...]:
        what, given = f"table '{self.name}': id_shares", listed(self.id_shares)
        if given is None or len(given) > _MOST_RANGES:
            raise InvalidInput(
                f"{what} is {reprlib.repr(self.id_shares)}, must be a list of at most {_MOST_RANGES} shares of the lookups"
            )
        shares = [checked_number(each, f"{what}[{index}]", zero=True) for index, each in enumerate(given)]
        if shares and abs(sum(shares) - 1) > _SHARE_ERROR:
            raise InvalidInput(f"{what} add up to {sum(shares):g}, must add up to 1")
        return tuple(shares)

    def _by_feature(self) -> tuple[float, ...]:
        what, given = f"table '{self.name}': pooling", listed(self.pooling)
        if given is None:
            total, known = checked_number(self.pooling, what), sum(self.poolings)
            if len(self.poolings) < 2:
                return (total,)
            return self.poolings if total == known else tuple(each * (total / known) for each in self.poolings)
        if not 0 < len(given) <= MAX_FEATURES:
            raise InvalidInput(
                f"{what} has {len(given)} numbers, must have one for each of 1 to {MAX_FEATURES} features"
            )
        return tuple(checked_number(each, f"{what}[{index}]") for index, each in enumerate(given))

    def _check_shape(self) -> None:
        for field in ("rows", "dim"):
            object.__setattr__(self, field, checked_whole(getattr(self, field), f"table '{self.name}': {field}"))
        if self.rows * self.dim > MAX_ELEMENTS:
            raise InvalidInput(
                f"table '{self.name}': {reprlib.repr(self.rows)} rows × {reprlib.repr(self.dim)} columns "
                "are more than 2**50 elements, the most a table may have"
            )

    def _fit_access(self) -> None:
        if not isinstance(self.access, AccessProfile):
            raise InvalidInput(
                f"table '{self.name}': access is {reprlib.repr(self.access)}, must be an AccessProfile; "
                "leave it out for uniform access, or pass AccessProfile.zipf(rows, exponent) or AccessProfile.from_counts(counts, rows)"
            )
        if self.access is UNIFORM:
            object.__setattr__(self, "access", AccessProfile.uniform(self.rows))
        if abs(self.access.total_rows - self.rows) > 0.5:
            raise InvalidInput(
                f"table '{self.name}': its access profile covers {self.access.total_rows:.0f} rows, the table has {self.rows}; "
                "make the profile for this table's rows"
            )
        object.__setattr__(self, "access", self.access.thinned(self.rows))

    @property
    def feature_shares(self) -> tuple[float, ...]:
        """Share of the lookups by each feature."""
        return tuple(each / self.pooling for each in self.poolings)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return self.rows * row_bytes(self.dtype, self.dim)

    def share_of_block(self, rows: int) -> float:
        """Share of the lookups that the busiest of the table's blocks of so many consecutive ids gets.

        Without `id_shares` hot rows lie scattered, so it is the block's share of the rows. With them it is never less.
        """
        part = rows / self.rows
        if not self.id_shares or part >= 1:
            return min(part, 1.0)
        ranges = len(self.id_shares)
        if part * ranges <= 1:
            return min(part * ranges * max(self.id_shares), 1.0)
        until = np.interp(
            np.append(np.arange(0, 1, part), 1.0), np.arange(ranges + 1) / ranges, np.cumsum([0.0, *self.id_shares])
        )
        return float(min(max(part, np.diff(until).max()), 1.0))

    def scaled_rows(self, factor: float) -> Table:
        """Return the table with `factor` times the rows, at least 1. A Zipf profile is computed anew, another one stretched."""
        scale = checked_number(factor, "scale")
        rows = max(1, round(min(self.rows * scale, MAX_ELEMENTS + 1)))  # too many rows fail the table's own check
        if self.access.exponent is not None:
            access = AccessProfile.zipf(rows, self.access.exponent)
        else:
            access = self.access.thinned(rows)
        return replace(self, rows=rows, access=access)


def shares_of_more_ids(shares: Sequence[float], ids: int, rows: int) -> tuple[float, ...]:
    """`Table.id_shares` of a table with more rows than there were ids; empty if ids share rows."""
    if not shares or rows < ids:
        return ()
    edges = np.arange(len(shares) + 1) / len(shares)
    until = np.interp(edges * (rows / ids), edges, np.cumsum([0.0, *shares]))
    return tuple(np.diff(until).tolist())


def row_bytes(dtype: str, dim: int) -> int:
    """Bytes of one row of `dim` weights, with the scale and bias of int8 weights."""
    return dim * DTYPE_BYTES[dtype] + (SCALE_BYTES if dtype == "int8" else 0)
