"""Process groups that modules share, since torch keeps a group, its connections and its threads until someone destroys it.

Groups are made once for some ranks, a number of devices per host and a timeout. They are remembered weakly: torch holds them while they can
be used, so none outlives a default group that is destroyed. Nothing else destroys them, not even the end of the process group that a module
was made for: torch would give a later group the name of a destroyed one, and find the addresses of that one in its store.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeAlias
from weakref import ref

import torch.distributed as dist

Groups: TypeAlias = list[dist.ProcessGroup | None]
"""Everyone, the host and the rail of this rank; None where the rank is alone."""

_Key: TypeAlias = tuple[tuple[int, ...], str, int, timedelta]

_made: dict[_Key, list[ref[dist.ProcessGroup] | None]] = {}


def known_groups(parent: dist.ProcessGroup, near: int, timeout: timedelta) -> Groups | None:
    """The groups that were made for the ranks of a process group; None if there are none, or one was destroyed.

    Args:
        parent: the process group of all ranks.
        near: devices of a host.
        timeout: longest wait for another rank.
    """
    found = _made.get(_key(parent, near, timeout))
    if found is None:
        return None
    groups = [None if one is None else one() for one in found]
    lost = any(
        one is not None and (group is None or _destroyed(group)) for one, group in zip(found, groups, strict=True)
    )
    return None if lost else groups


def remember_groups(
    parent: dist.ProcessGroup, near: int, timeout: timedelta, groups: Sequence[dist.ProcessGroup | None]
) -> None:
    """Let later modules find the groups."""
    _made[_key(parent, near, timeout)] = [None if group is None else ref(group) for group in groups]


def forget_groups() -> None:
    """Let later modules make groups of their own: an exchange has failed, and what is left of it may still arrive."""
    _made.clear()


def _key(parent: dist.ProcessGroup, near: int, timeout: timedelta) -> _Key:
    return tuple(dist.get_process_group_ranks(parent)), dist.get_backend(parent), near, timeout


def _destroyed(group: dist.ProcessGroup) -> bool:
    try:
        dist.get_process_group_ranks(group)
    except (KeyError, ValueError):
        return True
    return False
