"""Plug-ins: strategies, cost models and backends that other packages offer as entry points. Each is imported only when it is named."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from shardwright.errors import InvalidInput, said

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def plugins(kind: Literal["strategies", "cost_models", "backends"]) -> dict[str, EntryPoint]:
    """Other packages' entry points of group `shardwright.KIND` by name. If two have the same name, the first on the path counts."""
    from importlib.metadata import distributions

    points: dict[str, EntryPoint] = {}
    for distribution in distributions():
        with suppress(Exception):  # a damaged package must not hide the others
            for point in distribution.entry_points.select(group=f"shardwright.{kind}"):
                if not point.value.startswith("shardwright."):
                    points.setdefault(point.name, point)
    return points


def own_plugins(kind: Literal["strategies", "cost_models", "backends"]) -> dict[str, EntryPoint]:
    """The entry points of this kind that this package itself has; none if it is not installed but read from its sources."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        points = distribution("shardwright").entry_points
    except PackageNotFoundError:
        return {}
    return {point.name: point for point in points.select(group=f"shardwright.{kind}")}


def load_plugin(point: EntryPoint, members: tuple[str, ...]) -> Any:
    """Import the class of an entry point and call it without arguments.

    Args:
        point: one of `plugins`.
        members: attributes that the object must have besides `name`, which must equal the entry point's name.

    Raises:
        InvalidInput: the class cannot be imported or called, or its object lacks a member or has another name.
    """
    about = f"{point.group}: plug-in {point.name!r} ({point.value})"
    try:
        plugin = point.load()()
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"{about} cannot be loaded ({said(error)}); fix or uninstall its package") from error
    missing = [member for member in members if not hasattr(plugin, member)]
    if missing:
        raise InvalidInput(f"{about} has no {' and no '.join(missing)}, which its class must define")
    if getattr(plugin, "name", None) != point.name:
        raise InvalidInput(f"{about} has the name {getattr(plugin, 'name', None)!r}; both names must be the same")
    return plugin
