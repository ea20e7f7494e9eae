"""Control sets: a few fixed works that are visited among whatever is measured, so that a slow machine is not taken for a wrong model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log

from shardwright.measure.device_work import DeviceWork
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

_SETS = ((2, 20_000, 16, 4.0, 0.0), (8, 40_000, 64, 20.0, 1.05), (20, 30_000, 32, 20.0, 0.8))
"""Tables, rows, dim, pooling factor and skew of each control: small, skewed, and with many lookups."""

_SAMPLES = {"cpu": 1024, "cuda": 16_384}


@dataclass(frozen=True)
class Controls:
    """What the controls took.

    Attributes:
        times_ms: forward and backward ms of each control; empty where none was measured.
    """

    times_ms: tuple[float, ...] = ()

    def slower_than(self, metadata: Mapping[str, str]) -> float | None:
        """How many times as long they took as when a cost model was learned on this machine; None where that is not known.

        Args:
            metadata: the model's; `controls` holds what they took then.
        """
        try:
            then = [float(part) for part in metadata.get("controls", "").split(",")]
        except ValueError:
            return None
        if not self.times_ms or len(then) != len(self.times_ms) or min(then) <= 0:
            return None
        return exp(sum(log(now / before) for now, before in zip(self.times_ms, then, strict=True)) / len(then))

    def text(self) -> str:
        """As a model's metadata keeps them."""
        return ",".join(f"{ms:.5g}" for ms in self.times_ms)


def control_works(device_kind: str, optimizer: str) -> tuple[DeviceWork, ...]:
    """The controls of a kind of device, "cpu" or "cuda"."""
    samples = _SAMPLES[device_kind]
    return tuple(
        DeviceWork(
            (ShardWork(rows, dim, samples, pooling * samples, True, AccessProfile.zipf(rows, skew)),) * tables,
            tuple(range(1000 * number, 1000 * number + tables)),
            optimizer,
        )
        for number, (tables, rows, dim, pooling, skew) in enumerate(_SETS, start=1)
    )
