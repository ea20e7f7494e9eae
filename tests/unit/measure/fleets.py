"""A cluster of made-up machines, and measuring processes of them that take no time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from shardwright.cluster import Cluster
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.measure.visits import control_works
from tests.pools import UnrulyPool

HARDWARE = {
    "device_kind": "cpu",
    "processor": "Abacus 1",
    "cores": "4",
    "backend": "embedding_bag",
    "torch": "2.9",
    "fbgemm": "absent",
    "python": "3.11.1",
}


@dataclass(frozen=True)
class Machine:
    id: str
    host: str
    cores: float = 2.0
    gpus: float = 0.0
    processor: str = "Abacus 1"

    @property
    def hardware(self) -> dict[str, str]:
        return HARDWARE | {"processor": self.processor}

    def fingerprint(self, device: str, backend: str) -> dict[str, str]:
        return self.hardware


class MadeUpCluster(Cluster):
    """Machines whose workers die now and then.

    Attributes:
        machines: the machines.
        silent: hosts on which no worker starts.
        deaths: share of the jobs at which a worker dies.
        local: whether it claims to be one machine.
    """

    def __init__(
        self, machines: Sequence[Machine], silent: tuple[str, ...] = (), deaths: float = 0.0, *, local: bool = True
    ) -> None:
        super().__init__("local" if local else "auto")
        self.__dict__.update(machines=machines, silent=silent, deaths=deaths)

    def nodes(self) -> list[tuple[str, int, int]]:
        return [(machine.id, int(machine.cores), int(machine.gpus)) for machine in self.machines]

    @contextmanager
    def pool(
        self, factory: Callable[[], Any], places: Sequence[str] | None = None, **options: Any
    ) -> Iterator[UnrulyPool]:
        by_id = {machine.id: machine for machine in self.machines}
        held = [by_id[place] for place in places or () if by_id[place].host not in self.silent]
        pool = UnrulyPool(len(held), factory=factory, deaths=self.deaths)
        for state, machine in zip(pool.states, held, strict=True):
            state.host, state.of_machine = machine.host, machine.fingerprint
        yield pool


class MadeUpWorker:
    """A measuring process: takes time in proportion to the lookups, and twice as long for a set it has not seen yet."""

    started: ClassVar[list[Any]] = []
    measured: ClassVar[list[tuple[int, ...]]] = []

    def __init__(self, options: Any) -> None:
        MadeUpWorker.started.append(options)
        self.alive = True

    def __enter__(self) -> MadeUpWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.alive = False

    def visit(self, work: DeviceWork) -> Visit:
        if work in control_works("cpu", work.optimizer):
            return Visit(1.0, 1.0, 2, 1.0, 1.0, 0.0)
        key = tuple(sorted(work.seeds))
        slow = 1 if key in MadeUpWorker.measured else 2
        MadeUpWorker.measured.append(key)
        forward = slow * sum(one.lookups for one in work.works) / 1000
        return Visit(forward, 3 * forward, 2, 1.0 if slow == 1 else 2.0, 1.0, 0.0)
