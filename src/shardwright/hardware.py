"""This machine's hardware: its fingerprint for sample stores, its memory, and the sizes of its caches."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from shardwright.errors import InvalidInput, MeasurementFailed, MissingDependency


def check_device(kind: str) -> None:
    """Check the name of a kind of device.

    Raises:
        InvalidInput: the name is neither "cpu" nor "cuda".
    """
    if kind not in ("cpu", "cuda"):
        raise InvalidInput(f"device is {kind!r}, must be 'cpu' or 'cuda'")


def import_torch() -> ModuleType:
    """Import torch.

    Raises:
        MissingDependency: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            f"measuring needs PyTorch ({error}); install it with: pip install 'shardwright[measure]'"
        ) from error
    return torch


def require_cuda() -> ModuleType:
    """Import torch, and check that there is a CUDA device.

    Raises:
        MissingDependency: torch is not installed.
        MeasurementFailed: there is no CUDA device.
    """
    torch = import_torch()
    if not torch.cuda.is_available():
        raise MeasurementFailed(
            "device 'cuda' is not available here; use device='cpu', or install a CUDA build of torch"
        )
    return torch


Fingerprint: TypeAlias = dict[str, str]
"""Device kind, processor, cores, backend, and the versions of torch, fbgemm and Python, as texts."""

DECISIVE = ("device_kind", "processor", "cores", "backend", "torch", "fbgemm")
"""The fields in which two fingerprints must agree for their kernel measurements to be comparable."""

MACHINE = ("device_kind", "processor", "cores", "torch")
"""The decisive fields for collectives, which use no kernel backend."""


def fingerprint(device_kind: str, backend: str) -> Fingerprint:
    """The fingerprint of this machine. Only a CUDA device needs torch to be imported."""
    return {
        "device_kind": device_kind,
        "processor": gpu_model() if device_kind == "cuda" else cpu_model(),
        "cores": str(os.cpu_count()),
        "backend": backend,
        "torch": installed("torch"),
        "fbgemm": installed("fbgemm-gpu", "fbgemm-gpu-cpu", "fbgemm-gpu-nightly"),
        "python": platform.python_version(),
    }


def differences(first: Mapping[str, str], second: Mapping[str, str], decisive: Sequence[str] = DECISIVE) -> list[str]:
    """The decisive fields in which two fingerprints differ, as "field: one value / other value"."""
    return [f"{key}: {first.get(key)} / {second.get(key)}" for key in decisive if first.get(key) != second.get(key)]


def default_backend() -> str:
    """The kernels that measuring takes here: `fbgemm` if it is installed, else `embedding_bag`."""
    return "fbgemm" if find_spec("fbgemm_gpu") else "embedding_bag"


def cpu_model() -> str:
    """The CPU's model with family and model number, since virtual machines often report only the maker's name."""
    path = Path("/proc/cpuinfo")
    fields: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{key} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def gpu_model() -> str:
    """The model of the current CUDA device; raises as `require_cuda` does."""
    return str(require_cuda().cuda.get_device_name())


def device_memory() -> int:
    """Total bytes of memory of the current CUDA device; raises as `require_cuda` does."""
    torch = require_cuda()
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def available_memory() -> int:
    """Bytes of main memory that can be allocated without swapping, within the limits of this process's cgroup."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    meminfo = Path("/proc/meminfo")
    for line in meminfo.read_text().splitlines() if meminfo.exists() else ():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    return min(*limits, *_left_in_cgroups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")))


def _left_in_cgroups(root: Path, own: Path) -> Iterator[int]:
    """Bytes left in each cgroup (version 2) that limits this process: its own, as jobs of schedulers have one, and those above it."""
    with suppress(OSError):
        names = [line[4:] for line in own.read_text().splitlines() if line.startswith("0::/")]
        folder = root.joinpath(*names[:1])
        for group in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # ValueError: the limit is "max"
                most, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                yield (
                    most - used + int(stat.get("inactive_file", 0))
                )  # the kernel drops cached files when memory is short


def installed(*packages: str) -> str:
    """The version of the first of the packages that is installed; "absent" if none is."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "absent"


_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
COMMON_CACHES = (1 << 20, 32 << 20)  # bytes of L2 and last level, if the system does not report them
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cache_bytes(device_kind: str = "cpu") -> tuple[int, int]:
    """Bytes of the L2 and of the last-level cache of this machine's processor; for a GPU, whose last level is the L2, the L2 twice.

    Returns common sizes if the system reports none: a cost model of one machine works equally well with any sizes.
    """
    if device_kind == "cuda":
        import torch

        if not torch.cuda.is_available():
            return COMMON_CACHES
        size = int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
        return (size, size)
    return _of_levels(_CPU_CACHES)


def _of_levels(folder: Path) -> tuple[int, int]:
    """L2 and last-level bytes from the kernel's folder of files on a core's caches."""
    sizes: dict[int, int] = {}
    for cache in sorted(folder.glob("index*")):
        try:
            kind, level, size = ((cache / name).read_text().strip() for name in ("type", "level", "size"))
            if kind != "Instruction":
                sizes[int(level)] = int(size.rstrip("KMG")) * _UNITS.get(size[-1:], 1)
        except (OSError, ValueError):
            continue
    if not sizes or min(sizes.values()) <= 0:
        return COMMON_CACHES
    last = max(sizes)
    return sizes.get(2, sizes[last]), sizes[last]
