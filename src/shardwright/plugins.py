"""Strategies, cost models and backends of other packages: entry points, each imported when it is named and not before."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from shardwright.errors import InvalidInput, said

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def plugins(kind: Literal["strategies", "cost_models", "backends"]) -> dict[str, EntryPoint]:
    """The entry points of group `shardwright.KIND` by name; of two with one name, the first on the path counts."""
    from importlib.metadata import distributions

    found: dict[str, EntryPoint] = {}
    for distribution in distributions():
        with suppress(Exception):  # what is damaged in one package is no matter of the others
            for point in distribution.entry_points.select(group=f"shardwright.{kind}"):
                found.setdefault(point.name, point)
    return found


def load_plugin(point: EntryPoint, members: tuple[str, ...]) -> Any:
    """Import the class of an entry point and call it without arguments.

    Args:
        point: one of `plugins`.
        members: what the object must have besides `name`, which is the entry point's.

    Raises:
        InvalidInput: the class cannot be imported or called, or its object is no such plug-in.
    """
    about = f"{point.group}: plug-in {point.name!r} ({point.value})"
    try:
        found = point.load()()
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"{about} cannot be loaded ({said(error)}); mend or uninstall its package") from error
    missing = [member for member in members if not hasattr(found, member)]
    if missing:
        raise InvalidInput(f"{about} has no {' and no '.join(missing)}, which its class must define")
    if getattr(found, "name", None) != point.name:
        raise InvalidInput(f"{about} has the name {getattr(found, 'name', None)!r}; both names must be the same")
    return found
