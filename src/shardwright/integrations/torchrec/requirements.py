"""Check that TorchRec and FBGEMM are installed, and that their versions match torch's."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from shardwright.errors import MissingDependency

MATCHED = {"2.13": "1.8", "2.12": "1.7", "2.11": "1.6"}
"""Releases of FBGEMM and of TorchRec that match each release of torch."""

_FBGEMM = ("fbgemm-gpu", "fbgemm-gpu-cpu", "fbgemm-gpu-genai")


def require_torchrec() -> None:
    """Check that torch, FBGEMM and TorchRec are installed in matching versions, without importing them.

    Raises:
        MissingDependency: one is missing, or the versions do not match; the message has the install command.
    """
    missing = [name for name, module in _MODULES.items() if find_spec(module) is None]
    if missing:
        raise MissingDependency(
            f"planning for TorchRec needs {' and '.join(missing)}, not installed; install with: {_install(_release('torch'))}"
        )
    check_versions(_release)


def check_versions(release_of: Callable[[str], str | None]) -> None:
    """Check that the releases of torch, FBGEMM and TorchRec match.

    Args:
        release_of: returns the release of a distribution, such as "2.13"; None if it is unknown.

    Raises:
        MissingDependency: the releases do not match.
    """
    torch, torchrec = release_of("torch"), release_of("torchrec")
    fbgemm = next(filter(None, map(release_of, _FBGEMM)), None)
    remedy = f"install a matching set with: {_install(torch)}"
    if torchrec and fbgemm and torchrec != fbgemm:
        raise MissingDependency(
            f"TorchRec {torchrec} does not go with FBGEMM {fbgemm}; they need the same release: {remedy}"
        )
    wanted = MATCHED.get(torch or "")
    for name, release in (("FBGEMM", fbgemm), ("TorchRec", torchrec)):
        if wanted and release and release != wanted:
            raise MissingDependency(
                f"torch {torch} does not go with {name} {release}; torch {torch} goes with {name} {wanted}: {remedy}"
            )


def most_columns_here() -> int | None:
    """Most columns of a block that the installed FBGEMM computes correctly on GPUs; None if its kernels check the limit.

    Release 1.6 returns zeros for blocks of 1,025 to 2,048 columns (FBGEMM #5569).
    """
    return 1024 if "1.6" in map(_release, _FBGEMM) else None


_MODULES = {"torch": "torch", "FBGEMM": "fbgemm_gpu", "TorchRec": "torchrec"}


def _release(distribution: str) -> str | None:
    """Major and minor version of a distribution, such as "2.13"; None if it is not installed."""
    try:
        return ".".join(version(distribution).split("+")[0].split(".")[:2])
    except PackageNotFoundError:
        return None


def _install(torch: str | None) -> str:
    torch = torch if torch in MATCHED else "2.13"
    release = MATCHED[torch]
    return (
        f"pip install torch=={torch}.* fbgemm-gpu=={release}.* torchrec=={release}.* (without a GPU: fbgemm-gpu-cpu=={release}.* "
        "first, then torchrec with --no-deps, and its other needs: tensordict torchmetrics tqdm pyre-extensions iopath)"
    )
