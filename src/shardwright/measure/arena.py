"""One large buffer that all measured tables live in, so that no sample allocates, zeroes or page-faults its weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shardwright.errors import MeasurementFailed
from shardwright.task.units import format_bytes

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 4096  # bytes; a page, as a fresh allocation would have
_FILL = 0.01  # positive and far from denormal, as fp32 and as a pair of fp16: valid as weights and as optimizer state
_SMALL_HALVES = (0x2000, 0x3400)  # bits of fp16 from 0.008 to 0.25; a pair of them is a small positive fp32
_TILE = 2**27


class Arena:
    """A buffer on the CPU or a GPU from which tensors are taken, front to back, and which is used again for each sample.

    Args:
        size_bytes: size of the buffer.
        device: torch device it lies on.
    """

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        import torch

        self.device = device
        self.size_bytes = size_bytes
        check_fits(size_bytes, device)
        try:
            self._buffer = torch.full((size_bytes // 4,), _FILL, dtype=torch.float32, device=device)
            if device.type == "cuda":
                fill_randomly(self._buffer)
        except RuntimeError as error:  # torch raises this, or its subclass OutOfMemoryError, when memory cannot be had
            raise MeasurementFailed(
                f"arena: {format_bytes(size_bytes)} could not be allocated on {device}; use a smaller arena"
            ) from error
        self._used = 0

    def reset(self) -> None:
        """Give everything back. Tensors taken before must not be used any more."""
        self._used = 0

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A `(count,)` tensor with the values that happen to be there: those of a fill, or what an earlier sample has made of them.

        Raises:
            MeasurementFailed: the arena is too small.
        """
        needed = math.ceil(count * dtype.itemsize / _ALIGNMENT) * _ALIGNMENT
        if self._used + needed > self.size_bytes:
            raise MeasurementFailed(
                f"arena: the tables need {format_bytes(self._used + needed)}, the arena has {format_bytes(self.size_bytes)}; "
                "use a larger arena, or smaller tables"
            )
        start = self._used // 4
        self._used += needed
        return self._buffer[start : start + needed // 4].view(dtype)[:count]


def fill_randomly(buffer: torch.Tensor) -> None:
    """Fill an fp32 buffer with values that are small, positive and all different, also when they are read as fp16.

    A GPU may be quicker with constant data, as fewer bits change.
    """
    import torch

    for tile in buffer.view(torch.int16).split(_TILE):
        tile.random_(*_SMALL_HALVES)


def check_fits(size_bytes: int, device: torch.device) -> None:
    """Check that a buffer of this size may be allocated on the device.

    Raises:
        MeasurementFailed: less memory is free.
    """
    free = free_memory(device)
    if size_bytes > free:
        raise MeasurementFailed(
            f"arena: {format_bytes(size_bytes)} for weights and optimizer state are needed, {format_bytes(free)} are free on {device}; "
            "scale the tables down, or measure on a machine with more memory"
        )


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    from shardwright.measure.hardware import available_memory

    return available_memory()
