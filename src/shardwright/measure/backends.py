"""The kernel backends by name: those that come along, and one's own, named by where Python finds it."""

from __future__ import annotations

import hashlib
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from shardwright.errors import InvalidInput, MissingDependency
from shardwright.measure.backend import Backend
from shardwright.measure.hardware import import_torch

_FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_BUILD = "build(self, group, optimizer, arena, learning_rate=…)"


def is_own(name: str) -> bool:
    """Whether a backend's name says where to import it from."""
    return ":" in name


def own_backend(name: str) -> Backend:
    """Import a backend's class, and make it.

    Args:
        name: as in "my_package.kernels:MyBackend"; the same everywhere, as measuring processes import it for themselves.

    Raises:
        InvalidInput: there is no such module or class, it cannot be imported or made, or what is made is no backend.
    """
    found = _class(name)
    try:
        backend = found()
    except Exception as error:
        raise InvalidInput(
            f"backend: {name} cannot be made ({_said(error)}); it is called without arguments, so give its own defaults"
        ) from error
    if not isinstance(getattr(backend, "name", None), str):
        raise InvalidInput(f"backend: {name} has no `name`, which is a text; see shardwright.measure.backend.Backend")
    build = getattr(backend, "build", None)
    if not callable(build):
        raise InvalidInput(f"backend: {name} has no method {_BUILD}; see shardwright.measure.backend.Backend")
    try:
        inspect.signature(build).bind("group", "sgd", "arena", 0.1)
        inspect.signature(build).bind("group", "sgd", "arena")
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"backend: {name}.build does not take what it is given ({error}); write {_BUILD}") from error
    return cast("Backend", backend)


def source_digest(name: str) -> str:
    """Changes when the file that holds a backend's class does; "unknown" where no file can be read.

    Raises:
        InvalidInput: the class cannot be imported.
    """
    try:
        source = inspect.getsourcefile(_class(name))
        return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else "unknown"
    except (OSError, TypeError):
        return "unknown"


def _class(name: str) -> type[Any]:
    """The class that a name names."""
    if not _FORM.fullmatch(name):
        raise InvalidInput(f"backend: {name!r} must read package.module:ClassName")
    path, _, attribute = name.partition(":")
    if path == "__main__":
        raise InvalidInput(
            "backend: '__main__' is another module in each process; put the class into a module of its own, and name that"
        )
    try:
        module = import_module(path)
    except Exception as error:
        raise InvalidInput(f"backend: {_not_imported(path, error)}") from error
    found = getattr(module, attribute, None)
    if isinstance(found, type):
        return found
    classes = sorted(
        key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    )
    what = "is no class" if hasattr(module, attribute) else "does not exist"
    raise InvalidInput(f"backend: {attribute} {what} in {path}, which defines {', '.join(classes) or 'no class'}")


def _not_imported(path: str, error: Exception) -> str:
    """Why a module was not imported, and what to do."""
    parts = path.split(".")
    own = {".".join(parts[: end + 1]) for end in range(len(parts))}
    if isinstance(error, ModuleNotFoundError) and error.name in own:
        return f"there is no module {error.name!r}; install its package, or name its folder in PYTHONPATH"
    return f"importing {path} failed ({_said(error)}); measuring processes import it, so it must import by itself"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"


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
