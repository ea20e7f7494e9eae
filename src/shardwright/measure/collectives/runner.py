"""Measuring samples whatever the group does: a rank that hangs or dies costs a restart, at worst a sample, never the collection."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.errors import MeasurementFailed
from shardwright.measure.collectives.group import GroupFailed, GroupHung, GroupOptions, RankGroup
from shardwright.measure.collectives.sampling import CollectiveSample
from shardwright.measure.collectives.timing import DeviceTimes

MOST_FAILURES = 5
"""So many failures in a row are the machine's fault, not a sample's."""

_TRIES = 2  # of a sample during which a rank ends; one that hangs is not tried again, since that costs another timeout


class Runner:
    """Measures samples in a group that is started anew when it fails; a context manager that ends it.

    Args:
        options: how the group is set up.
        start: starts one.
    """

    def __init__(self, options: GroupOptions, start: Callable[[GroupOptions], RankGroup] = RankGroup) -> None:
        self._options, self._start = options, start
        self._group: RankGroup | None = None
        self._failures = 0

    def measure(self, sample: CollectiveSample) -> DeviceTimes | None:
        """The times of a sample; None where it hung, or a rank ended each time.

        Raises:
            MeasurementFailed: the group fails again and again, or says that it cannot measure here.
        """
        for _ in range(_TRIES):
            group = self._running_group()
            try:
                times = group.measure(sample)
            except GroupFailed as error:
                self._failed(error)
                if isinstance(error, GroupHung):
                    break
            else:
                self._failures = 0
                return times
        return None

    def close(self) -> None:
        """End the group."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running_group(self) -> RankGroup:
        while self._group is None:
            try:
                self._group = self._start(self._options)
            except GroupFailed as error:
                self._failed(error)
        return self._group

    def _failed(self, error: GroupFailed) -> None:
        self.close()
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            raise MeasurementFailed(
                f"collectives between {self._options.world} processes failed {self._failures} times in a row, at last because {error}; "
                "what was measured before is kept. Use fewer ranks, a longer timeout or smaller batches"
            ) from error
