"""Which columns of a log hold embedding ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

EVENT_COLUMNS = ("user", "item")


@dataclass(frozen=True)
class ColumnKind:
    """What a column of ids holds.

    Attributes:
        ids: whether the ids are whole numbers or text.
        is_list: whether a sample has a list of ids, or one.
    """

    ids: Literal["integers", "text"]
    is_list: bool

    def __str__(self) -> str:
        return f"lists of {self.ids}" if self.is_list else self.ids


def column_kind(column_type: pa.DataType) -> ColumnKind | None:
    """Kind of a column of this Arrow type, or None where it holds no ids (floats, booleans, times, ...)."""
    import pyarrow as pa

    is_list = is_list_type(column_type)
    value_type = column_type.value_type if is_list else column_type
    if pa.types.is_dictionary(value_type):
        value_type = value_type.value_type
    if pa.types.is_integer(value_type):
        return ColumnKind("integers", is_list)
    if is_text_type(value_type):
        return ColumnKind("text", is_list)
    return None


def is_list_type(column_type: pa.DataType) -> bool:
    """Whether this is any of Arrow's list types."""
    import pyarrow as pa

    types = pa.types
    checks = (
        types.is_list,
        types.is_large_list,
        types.is_fixed_size_list,
        types.is_list_view,
        types.is_large_list_view,
    )
    return any(check(column_type) for check in checks)


def is_text_type(column_type: pa.DataType) -> bool:
    """Whether this is any of Arrow's string and binary types."""
    import pyarrow as pa

    types = pa.types
    checks = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    return any(check(column_type) for check in (*checks, types.is_fixed_size_binary, types.is_binary_view))


def is_nested(column_type: pa.DataType) -> bool:
    """Whether this nests deeper than a list of scalars."""
    import pyarrow as pa

    value_type = column_type.value_type if is_list_type(column_type) else column_type
    return bool(pa.types.is_nested(value_type))


def is_empty_type(column_type: pa.DataType) -> bool:
    """Whether this is the type of columns without any value: nulls, or lists of them."""
    import pyarrow as pa

    return bool(pa.types.is_null(column_type.value_type if is_list_type(column_type) else column_type))
