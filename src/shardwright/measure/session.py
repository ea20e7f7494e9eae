"""One device, ready to measure: arena, backend, clock and sentinel. Runs inside the worker process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.errors import MeasurementFailed
from shardwright.measure.arena import Arena
from shardwright.measure.backend import NO_CUDA, load_backend
from shardwright.measure.fused import DeviceCalls
from shardwright.measure.sentinel import SENTINEL_BYTES, Sentinel
from shardwright.measure.timing import TimingPolicy, clock_of, time_parts
from shardwright.sharding.work import ShardWork

QUIET = 1.03
"""Highest sentinel ratio at which a measurement counts as undisturbed."""


@dataclass(frozen=True)
class Measurement:
    """Times of one device's work.

    Attributes:
        forward_ms: lookups of all tables.
        backward_ms: backward of all tables, optimizer included.
        runs: counted runs.
        sentinel: sentinel time relative to the quiet machine, the longer one of before and after; above `QUIET` the measurement
            was disturbed.
    """

    forward_ms: float
    backward_ms: float
    runs: int
    sentinel: float


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

    def measure(self, works: Sequence[ShardWork], seeds: Sequence[int], optimizer: str) -> Measurement:
        """Build the tables, warm up, and time them; a disturbed measurement is for the caller to repeat.

        Args:
            works: the shards of one device.
            seeds: one per shard, for its batch.
            optimizer: optimizer inside backward.

        Raises:
            MeasurementFailed: the arena is too small, or the backend cannot run this.
        """
        self._arena.reset()
        calls = DeviceCalls(works, seeds, optimizer, self._backend, self._arena)
        before = self._sentinel.read()
        timing = time_parts([calls.forward, calls.backward], self._clock, self._policy)
        forward, backward = timing.parts_ms
        return Measurement(forward, backward, timing.runs, max(before, self._sentinel.read()))
