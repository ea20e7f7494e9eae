"""The caches of this machine, which a model's head sees distinct bytes in units of."""

from __future__ import annotations

from pathlib import Path

_CPU = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN = (1 << 20, 32 << 20)  # bytes, where the system does not tell
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cache_bytes(device_kind: str = "cpu") -> tuple[int, int]:
    """Bytes of the L2 and of the last-level cache of this machine's processor; of a GPU, which has two levels, twice the L2.

    Args:
        device_kind: "cpu" or "cuda".

    A model of one machine is as good in any units: where the system does not tell, common sizes are returned.
    """
    if device_kind == "cuda":
        import torch

        if not torch.cuda.is_available():
            return _UNKNOWN
        size = int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
        return (size, size)
    return _of_levels(_CPU)


def _of_levels(folder: Path) -> tuple[int, int]:
    """The same from a folder of the kernel's files on the caches of a core."""
    sizes: dict[int, int] = {}
    for cache in sorted(folder.glob("index*")):
        try:
            kind, level, size = ((cache / name).read_text().strip() for name in ("type", "level", "size"))
            if kind != "Instruction":
                sizes[int(level)] = int(size.rstrip("KMG")) * _UNITS.get(size[-1:], 1)
        except (OSError, ValueError):
            continue
    if not sizes or min(sizes.values()) <= 0:
        return _UNKNOWN
    last = max(sizes)
    return sizes.get(2, sizes[last]), sizes[last]
