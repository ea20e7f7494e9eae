"""torch where it is needed, and what is said where it is missing."""

from __future__ import annotations

from types import ModuleType

from shardwright.errors import MissingDependency

NO_CUDA = "device 'cuda' is not available here; use device='cpu', or install a CUDA build of torch"


def import_torch() -> ModuleType:
    """The torch package.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            f"measuring needs PyTorch ({error}); install it with: pip install 'shardwright[measure]'"
        ) from error
    return torch
