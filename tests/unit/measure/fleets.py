"""A cluster of made-up machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shardwright.cluster import Cluster
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
