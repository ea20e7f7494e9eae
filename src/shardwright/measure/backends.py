"""Find a kernel backend by name: a built-in one, a plug-in, or a user's own."""

from __future__ import annotations

import hashlib
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shardwright.errors import InvalidInput, MissingDependency, said
from shardwright.hardware import import_torch
from shardwright.plugins import plugins

if TYPE_CHECKING:
    from shardwright.measure.backend import Backend

BACKENDS = ("fbgemm", "embedding_bag")

BACKEND_HELP = f"{', '.join(BACKENDS)}, a plug-in's name, or your own as package.module:ClassName (default: fbgemm if it is installed)"

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_BUILD = "build(self, group, optimizer, arena, learning_rate=…)"


def is_own(name: str) -> bool:
    """Whether a name is that of a user's own backend class ("package.module:ClassName") or of a plug-in."""
    return name not in BACKENDS and (":" in name or name in plugins("backends"))


def check_backend(name: str) -> None:
    """Check that there is a backend of this name; imports a user's own backend.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: torch is not installed.
    """
    if is_own(name):
        import_torch()
        own_backend(name)
    elif name not in BACKENDS:
        raise InvalidInput(
            f"backend: unknown backend {name!r}; known backends are {', '.join([*BACKENDS, *plugins('backends')])}, "
            "and one of your own is named package.module:ClassName"
        )


def load_backend(name: str) -> Backend:
    """The backend of this name.

    Args:
        name: one of `BACKENDS`, package.module:ClassName, or the name of a plug-in, whose entry point names a class in this form.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: the package of the backend is not installed.
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


def own_backend(name: str) -> Backend:
    """Import a user's own backend class and make an instance.

    Args:
        name: as in "my_package.kernels:MyBackend". Measuring processes import it too, so it must not depend on this process.

    Raises:
        InvalidInput: there is no such module or class, it cannot be imported or instantiated, or the object is no backend.
    """
    backend_class = _class(name)
    try:
        backend = backend_class()
    except Exception as error:
        raise InvalidInput(
            f"backend: {name} could not be created ({said(error)}); its constructor must work without arguments"
        ) from error
    if not isinstance(getattr(backend, "name", None), str):
        raise InvalidInput(
            f"backend: {name} has no `name`, which must be a text; see shardwright.measure.backend.Backend"
        )
    build = getattr(backend, "build", None)
    if not callable(build):
        raise InvalidInput(f"backend: {name} has no method {_BUILD}; see shardwright.measure.backend.Backend")
    try:
        inspect.signature(build).bind("group", "sgd", "arena", 0.1)
        inspect.signature(build).bind("group", "sgd", "arena")
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"backend: {name}.build does not take its arguments ({error}); write {_BUILD}") from error
    return cast("Backend", backend)


def source_digest(name: str) -> str:
    """Digest of the source file of a backend's class; "unknown" if the file cannot be read.

    Raises:
        InvalidInput: the class cannot be imported.
    """
    try:
        source = inspect.getsourcefile(_class(name))
        return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else "unknown"
    except (OSError, TypeError):
        return "unknown"


def _class(name: str) -> type[Any]:
    """The backend class that a name or a plug-in points to."""
    name = name if ":" in name else plugins("backends")[name].value
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"backend: {name!r} must read package.module:ClassName")
    path, _, attribute = name.partition(":")
    if path == "__main__":
        raise InvalidInput(
            "backend: a class in '__main__' cannot be imported by measuring processes; move it into a module and name that"
        )
    try:
        module = import_module(path)
    except Exception as error:
        raise InvalidInput(f"backend: {_not_imported(path, error)}") from error
    member = getattr(module, attribute, None)
    if isinstance(member, type):
        return member
    classes = sorted(
        key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    )
    what = "is no class" if hasattr(module, attribute) else "does not exist"
    raise InvalidInput(f"backend: {attribute} {what} in {path}, which defines {', '.join(classes) or 'no class'}")


def _not_imported(path: str, error: Exception) -> str:
    """Why a module could not be imported, and the remedy."""
    parts = path.split(".")
    own = {".".join(parts[: end + 1]) for end in range(len(parts))}
    if isinstance(error, ModuleNotFoundError) and error.name in own:
        return f"there is no module {error.name!r}; install its package, or name its folder in PYTHONPATH"
    return (
        f"importing {path} failed ({said(error)}); measuring processes import it, so it must not depend on this process"
    )
