"""Measured costs, from the workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.errors import MeasurementFailed
from shardwright.measure.device_work import DeviceWork, Visit, arena_bytes, device_works
from shardwright.measure.hardware import differences
from shardwright.measure.measuring import Times, settled, time_of
from shardwright.measure.worker import WorkerOptions
from shardwright.search.learned.arrays import Floats
from shardwright.search.learned.bench import MeasuredJob, MeasuringJob, measure_on
from shardwright.search.learned.fleet import Fleet
from shardwright.search.learned.worlds import Placed, measured_phases, measured_world_name

_MOST_AT_ONCE = 16  # devices of a job: few seconds of work, which is what a killed worker loses


@dataclass(frozen=True)
class FleetWorld:
    """What `MeasuredWorld` measures on this machine, measured by a fleet of workers of one kind.

    As there, each device of each placement is measured in every round, in a new random order: whatever is slow for a minute, a machine or
    one of its neighbours, touches all placements alike, and the median of the quiet rounds counts. A worker that is killed loses the
    devices it had at hand, which others measure anew. Its name is that of a `MeasuredWorld` on such a machine, so that a training may be
    begun with a cluster and go on without, or the other way round, on the same kind of machine, and on no other.

    Attributes:
        fleet: the workers.
        rounds: how often each device of each placement is visited.
        seed: seed of the lookups.
    """

    fleet: Fleet
    rounds: int = 2
    seed: int = 0

    @property
    def name(self) -> str:
        """As in "measured: fbgemm on AMD EPYC"."""
        return measured_world_name(self.fleet.fingerprint)

    def costs(self, placed: Sequence[Placed]) -> list[Floats]:
        """Measured kernels, analytic communication.

        Raises:
            MeasurementFailed: a device's shards do not fit a worker's memory, a kernel cannot run, or a worker has other hardware than
                the fleet.
            ClusterFailed: no worker is left.
        """
        plans = [arrays.plan(assignment, "learning", self.seed) for arrays, assignment in placed]
        works = [device_works(plan, self.seed) for plan in plans]
        times = self._measured(list(dict.fromkeys(work for one in works for work in one if work.works)))
        none = np.zeros(2)
        found = [np.array([times[work] if work.works else none for work in one]) for one in works]
        return [measured_phases(plan, one[:, 0], one[:, 1]) for plan, one in zip(plans, found, strict=True)]

    def _measured(self, distinct: list[DeviceWork]) -> dict[DeviceWork, Times]:
        """Forward and backward ms of each work over the rounds."""
        visits: dict[DeviceWork, list[Visit]] = {work: [] for work in distinct}
        rng = np.random.default_rng(self.seed)
        for quiet in range(1, self.rounds + 1):
            todo = distinct
            while todo:
                jobs = list(self._jobs([todo[place] for place in rng.permutation(len(todo))]))
                for number, found in self.fleet.pool.map(measure_on, jobs):
                    self._check(found)
                    for work, visit in zip(jobs[number].works, found.visits, strict=True):
                        visits[work].append(visit)
                todo = [work for work in todo if not settled(visits[work], quiet)]
        usual = float(np.median([visit.usual_ms for some in visits.values() for visit in some])) if visits else None
        return {work: time_of(some, usual) for work, some in visits.items()}

    def _jobs(self, works: list[DeviceWork]) -> Iterator[MeasuringJob]:
        """The works in order, a few in each job."""
        largest = max(works, key=lambda work: work.table_bytes + work.buffer_bytes)
        options = WorkerOptions(self.fleet.device, self.fleet.fingerprint["backend"], arena_bytes(works))
        at_once = min(_MOST_AT_ONCE, -(-len(works) // (2 * max(self.fleet.pool.size, 1))))
        for begin in range(0, len(works), at_once):
            yield MeasuringJob(works[begin : begin + at_once], largest, options)

    def _check(self, found: MeasuredJob) -> None:
        differing = differences(found.fingerprint, self.fleet.fingerprint)
        if differing:
            raise MeasurementFailed(
                f"a worker measured on other hardware than the rest of its fleet ({'; '.join(differing)}); give each node GPUs of one "
                "model, and the same software on all"
            )
