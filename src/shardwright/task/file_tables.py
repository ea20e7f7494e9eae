"""Tables and access profiles as they stand in task files and table files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from msgspec import UNSET, Struct, UnsetType

from shardwright.errors import InvalidInput
from shardwright.schema import Place, convert, given
from shardwright.task.access import AccessProfile, Floats
from shardwright.task.table import Dtype, Table

_ACCESS_FORMS = "uniform, {zipf: <exponent>} or {rows: [0, …], share: [0, …, 1]}"


class _TableFile(Struct, forbid_unknown_fields=True):
    name: str
    rows: int
    dim: int
    pooling: float = 1.0
    pooled: bool = True
    access: str | dict[str, Any] = "uniform"
    dtype: str = "fp32"


class _AccessFile(Struct, forbid_unknown_fields=True):
    zipf: float | UnsetType = UNSET
    rows: list[float] | UnsetType = UNSET
    share: list[float] | UnsetType = UNSET


def table_from_dict(document: object, where: str | Place = "table") -> Table:
    """The table in one item of `tables`.

    Raises:
        InvalidInput: a rule is broken; the message begins with `where`.
    """
    place = where if isinstance(where, Place) else Place(where)
    content = convert(document, _TableFile, place)
    with place.naming():
        table = Table(
            content.name, content.rows, content.dim, content.pooling, content.pooled, dtype=cast(Dtype, content.dtype)
        )
    if content.access == "uniform":
        return table
    if isinstance(content.access, str):
        raise InvalidInput(f"{place.at('access')}: {content.access!r} must be {_ACCESS_FORMS}")
    access = convert(content.access, _AccessFile, place.at("access"))
    with place.naming():
        return replace(table, access=_profile(access, table.rows))


def table_to_dict(table: Table) -> dict[str, Any]:
    """The table as plain data; what is the default is left out."""
    document: dict[str, Any] = {"name": table.name, "rows": table.rows, "dim": table.dim}
    document["pooling"] = plain(table.pooling)
    if not table.pooled:
        document["pooled"] = False
    if (access := _access_to_dict(table)) is not None:
        document["access"] = access
    if table.dtype != "fp32":
        document["dtype"] = table.dtype
    return document


def _profile(content: _AccessFile, rows: int) -> AccessProfile:
    zipf, points, share = content.zipf, content.rows, content.share
    if not isinstance(zipf, UnsetType) and points is UNSET and share is UNSET:
        return AccessProfile.zipf(rows, zipf)
    if zipf is UNSET and not isinstance(points, UnsetType) and not isinstance(share, UnsetType):
        return AccessProfile(np.array(points), np.array(share))
    raise InvalidInput(f"access: fields are {', '.join(given(content)) or 'missing'}; it must be {_ACCESS_FORMS}")


def _access_to_dict(table: Table) -> dict[str, Any] | None:
    access = table.access
    if access == AccessProfile.uniform(table.rows):
        return None
    if access.exponent is not None and access == AccessProfile.zipf(table.rows, access.exponent):
        return {"zipf": plain(access.exponent)}
    return {"rows": _plain_list(access.rows), "share": _plain_list(access.share)}


def plain(number: float) -> int | float:
    """A number as short as it can be written exactly: 1.0 as 1."""
    return int(number) if float(number).is_integer() and abs(number) < 2**53 else float(number)


def _plain_list(numbers: Floats | Sequence[float]) -> list[int | float]:
    return [plain(number) for number in numbers]
