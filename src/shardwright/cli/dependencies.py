"""Packages that only some commands need."""

from __future__ import annotations

from importlib.util import find_spec

from shardwright.errors import MissingDependency


def require_torch(purpose: str, extra: str) -> None:
    """Check that torch is installed, without importing it.

    Args:
        purpose: what needs it, as in "measuring".
        extra: the optional part of this package that brings it.

    Raises:
        MissingDependency: it is not.
    """
    if find_spec("torch") is None:
        raise MissingDependency(
            f"{purpose} needs torch, which is not installed; install it with: pip install 'shardwright[{extra}]'"
        )
