"""Which sample is measured when: each 20th a second time, so that repeat noise is known."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.measure.journal import Key

REPEAT_EVERY = 20
"""Every 20th sample is measured a second time, so that repeat noise is known."""

_REPEAT_AFTER = 10  # samples between a sample and its repeat


def schedule(samples: int) -> Iterator[Key]:
    """(sample, repeat) in the order of measuring; each repeat comes ten samples after its first measurement."""
    for sample in range(samples + _REPEAT_AFTER):
        if sample < samples:
            yield sample, 0
        earlier = sample - _REPEAT_AFTER
        if earlier >= 0 and earlier % REPEAT_EVERY == 0:
            yield earlier, 1
