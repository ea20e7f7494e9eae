"""The kernel backends by name."""

from __future__ import annotations

from shardwright.errors import InvalidInput, MissingDependency
from shardwright.measure.backend import Backend
from shardwright.measure.own_backend import is_own, own_backend
from shardwright.measure.torch_package import import_torch

BACKENDS = ("fbgemm", "embedding_bag")

BACKEND_HELP = f"{', '.join(BACKENDS)}, or your own as package.module:ClassName (default: fbgemm where it is installed)"


def default_backend() -> str:
    """`fbgemm` where it is installed, else `embedding_bag`."""
    from importlib.util import find_spec

    return "fbgemm" if find_spec("fbgemm_gpu") else "embedding_bag"


def check_backend(name: str) -> None:
    """Check that there is a backend of this name; one of the user's own is imported for that.

    Raises:
        InvalidInput: there is none.
        MissingDependency: torch is not installed.
    """
    if is_own(name):
        import_torch()
        own_backend(name)
    elif name not in BACKENDS:
        raise InvalidInput(
            f"backend: unknown backend {name!r}; known backends are {', '.join(BACKENDS)}, "
            "and one of your own is named package.module:ClassName"
        )


def load_backend(name: str) -> Backend:
    """The backend of this name.

    Args:
        name: one of `BACKENDS`, or package.module:ClassName.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: its package is not installed.
    """
    if is_own(name):
        import_torch()
        return own_backend(name)
    check_backend(name)
    import_torch()
    try:
        if name == "fbgemm":
            from shardwright.measure.fbgemm import FbgemmBackend

            return FbgemmBackend()
        from shardwright.measure.embedding_bag import EmbeddingBagBackend

        return EmbeddingBagBackend()
    except ImportError as error:
        raise MissingDependency(
            f"backend '{name}' cannot be imported ({error}); install it with: pip install 'shardwright[measure]'"
        ) from error
