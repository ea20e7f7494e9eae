"""Constraints as they stand in task files."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from shardwright.errors import InvalidInput
from shardwright.schema import Place, convert, given
from shardwright.task.constraints import Constraints, TableConstraint


class _ConstraintFile(Struct, forbid_unknown_fields=True):
    table: str | UnsetType = UNSET
    sharding_types: list[str] | UnsetType = UNSET
    devices: list[int] | UnsetType = UNSET
    max_shards: int | UnsetType = UNSET
    min_columns: int | UnsetType = UNSET
    column_multiple: int | UnsetType = UNSET
    equal_rows: bool | UnsetType = UNSET
    equal_columns: bool | UnsetType = UNSET
    colocate: list[str] | UnsetType = UNSET
    apart: list[str] | UnsetType = UNSET


_LIMITS = ("sharding_types", "devices", "max_shards", "min_columns", "column_multiple")
_FLAGS = ("equal_rows", "equal_columns")


def constraints_from_list(items: list[Any], place: Place) -> Constraints:
    """The constraints in a task file.

    Raises:
        InvalidInput: a rule is broken, or a table has limits twice.
    """
    tables: dict[str, TableConstraint] = {}
    groups: dict[str, list[tuple[str, ...]]] = {"colocate": [], "apart": []}
    for index, item in enumerate(items):
        at = place.at(f"[{index}]")
        fields = given(convert(item, _ConstraintFile, at))
        kind = _subject(fields, at)
        subject = fields.pop(kind)
        if kind != "table":
            groups[kind].append(tuple(subject))
        elif subject in tables:
            raise InvalidInput(f"{at}: table '{subject}' has a constraint already; put all its limits into one")
        else:
            with at.naming(instead_of="constraints: "):
                tables[subject] = TableConstraint(**fields)
    with Place(place.file).naming():
        return Constraints(tables, tuple(groups["colocate"]), tuple(groups["apart"]))


def _subject(fields: dict[str, Any], place: Place) -> str:
    """What a constraint is about: "table", "colocate" or "apart"."""
    named = [kind for kind in ("table", "colocate", "apart") if kind in fields]
    if len(named) != 1:
        found = " and ".join(named) or "none"
        raise InvalidInput(f"{place}: names {found} of table, colocate and apart; a constraint names exactly one")
    if named != ["table"] and len(fields) > 1:
        other = next(field for field in fields if field not in named)
        raise InvalidInput(
            f"{place}: {other} does not go with {named[0]}; write {{table: <name>, {other}: …}} for each table"
        )
    return named[0]


def constraints_to_list(constraints: Constraints) -> list[dict[str, Any]]:
    """The constraints as plain data."""
    limits: list[dict[str, Any]] = []
    for name, limit in constraints.tables.items():
        fields = {key: getattr(limit, key) for key in _LIMITS}
        given_fields = {key: _list(value) for key, value in fields.items() if value is not None}
        limits.append({"table": name, **given_fields, **{flag: True for flag in _FLAGS if getattr(limit, flag)}})
    colocated = [{"colocate": list(group)} for group in constraints.colocate]
    return [*limits, *colocated, *({"apart": list(group)} for group in constraints.apart)]


def _list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
