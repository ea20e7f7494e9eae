"""One device, ready to measure: arena, backend, clock and sentinel. Runs inside the worker process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import time
from typing import TYPE_CHECKING

from shardwright.errors import MeasurementFailed
from shardwright.measure.arena import Arena
from shardwright.measure.backends import load_backend
from shardwright.measure.device_work import Visit
from shardwright.measure.fused import DeviceCalls, wait_for
from shardwright.measure.hardware import NO_CUDA
from shardwright.measure.sentinel import SENTINEL_BYTES, Sentinel
from shardwright.measure.timing import TimingPolicy, clock_of, time_parts
from shardwright.sharding.work import ShardWork

if TYPE_CHECKING:
    import torch


class Session:
    """Measures sets of shards on one device.

    Args:
        device: "cpu" or "cuda".
        backend: name of the backend.
        arena_bytes: room for weights and optimizer state.
        policy: how often to repeat; by default the device's own.
    """

    def __init__(self, device: str, backend: str, arena_bytes: int, policy: TimingPolicy | None = None) -> None:
        import torch

        if device.startswith("cuda") and not torch.cuda.is_available():
            raise MeasurementFailed(NO_CUDA)
        where = torch.device(device)
        self._backend = load_backend(backend)
        self._clock = clock_of(where)
        self._arena = Arena(arena_bytes, where)
        self._sentinel = Sentinel(Arena(SENTINEL_BYTES, where), self._clock)
        self._policy = policy or TimingPolicy.of(where.type)

    def visit(self, works: Sequence[ShardWork], seeds: Sequence[int], optimizer: str) -> Visit:
        """Build the tables, draw the batches, warm up, and time them; a disturbed visit is for the caller to repeat.

        Args:
            works: the shards of one device.
            seeds: one per shard, for its batches.
            optimizer: optimizer inside backward.

        Raises:
            MeasurementFailed: the arena or the memory beside it is too small, or the backend cannot run this.
        """
        with _refusals_said(self._arena.device):
            self._arena.reset()
            calls = DeviceCalls(works, seeds, optimizer, self._backend, self._arena)
            parts = [calls.forward, calls.backward]
            timing = time_parts(parts, self._clock, self._policy, self._sentinel, calls.batches)
        forward, backward = timing.parts_ms
        spent = calls.spent | {"warm-up": timing.warm_up_s, "runs": timing.runs_s}
        state = self._sentinel.beyond_usual(timing.state_ms)
        return Visit(forward, backward, calls.batches, state, self._sentinel.usual_ms, time(), spent)


@contextmanager
def _refusals_said(device: torch.device) -> Iterator[None]:
    """A set that does not fit, or that the kernels refuse, is this set's failure, not the process's: the next one may run."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MeasurementFailed(
            f"the batch does not fit beside the arena ({_first_line(error)}); use a smaller arena, or smaller batches"
        ) from error
    except RuntimeError as error:
        wait_for(device)  # raises, and so ends the process, where the device is lost
        raise MeasurementFailed(
            f"the kernels cannot run this set ({_first_line(error)}); leave it out, or use another backend"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
