"""The exchange and the steps of `shardwright.runtime`, measured on the ranks that measure links or train on plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torchrec import KeyedJaggedTensor

from shardwright.integrations.torchrec.models import feature_names
from shardwright.integrations.torchrec.steps.phases import PHASES, settle, start_together
from shardwright.measure.collectives.links import Rung
from shardwright.measure.collectives.rank import Member
from shardwright.runtime import ShardedEmbeddings
from shardwright.runtime.process_groups import Ranks
from shardwright.runtime.wire import Label, Sizes, TrafficMeter, Wire
from shardwright.sharding.plan import Plan
from shardwright.task.topology import Topology

_PARTS = {
    "counts": ("input_dist_ms", "input_dist_ms"),
    "ids": ("input_dist_ms", "input_dist_ms"),
    "values": ("lookup_ms", "output_dist_ms"),
    "gradients": ("backward_ms", "gradient_dist_ms"),
    "replicas": ("backward_ms", "gradient_dist_ms"),
}
"""By kind of exchange, the phases of the time before it and of itself; counts of a backward pass are exchanged for replicas."""
_TIMEOUT = timedelta(seconds=300)  # ranks with large tables wait for each other while these are made


def exchange_call(rung: Rung, member: Member, hosts: int) -> Callable[[], Any]:
    """The exchange of a rung on this rank, with receives posted first."""
    ranks = Ranks.of(Topology(hosts, member.world // hosts), None, member.device, _TIMEOUT)
    members = ranks.host if rung.within else ranks.world
    wire = Wire(members, TrafficMeter(), member.device)
    rank = members.ranks.index(member.rank)
    sent, received = (np.array([counts]) for counts in rung.splits(rank, members.size))
    values, sizes = torch.zeros((int(sent.sum()), 1), device=member.device), Sizes(sent, received)
    return lambda: [wire.exchange(lambda _: values, sizes, [1], Label("forward", "values")) for _ in range(rung.calls)]


@dataclass(frozen=True)
class RuntimeModel:
    """The tables of a plan in `shardwright.runtime`, in one rank.

    Attributes:
        module: the tables.
    """

    module: ShardedEmbeddings

    @classmethod
    def of(cls, plan: Plan, member: Member) -> RuntimeModel:
        """Shard the tables; every rank of the group must call this."""
        features = {table.name: feature_names(table) for table in plan.task.tables}
        return cls(ShardedEmbeddings(plan, features=features, device=member.device, timeout=_TIMEOUT))

    def outputs(self, batch: KeyedJaggedTensor) -> list[torch.Tensor]:
        """Look up a batch of this rank's samples."""
        outputs = self.module(batch).values()
        return [output if isinstance(output, torch.Tensor) else output.values() for output in outputs]

    def update(self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Propagate gradients and update all weights."""
        torch.autograd.backward(outputs, gradients)

    def phases(self, batches: Sequence[KeyedJaggedTensor], member: Member) -> dict[str, list[float]]:
        """Return the ms of each of `phases.PHASES` in one step for each batch; every rank must call this."""
        steps = []
        for batch in batches:
            clock = _PhaseClock(member)
            self.module.traffic.around = clock.exchange
            outputs = self.outputs(batch)
            clock.lap("output_dist_ms")
            gradients = [torch.ones_like(output) for output in outputs]
            clock.start()
            self.update(outputs, gradients)
            clock.lap("backward_ms")
            steps.append(clock.ms)
        self.module.traffic.around = nullcontext
        return {phase: [ms[phase] for ms in steps] for phase in PHASES}


@dataclass
class _PhaseClock:
    """The ms of a step's phases. All ranks begin each exchange together, so that none includes the wait for a slower rank's kernels."""

    member: Member
    ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin a lap, together with all ranks."""
        settle(self.member)
        start_together(self.member)
        self._since = perf_counter()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to a phase."""
        settle(self.member)
        now = perf_counter()
        self.ms[phase] += (now - self._since) * 1e3
        self._since = now

    @contextmanager
    def exchange(self, label: Label) -> Iterator[None]:
        """Time the exchange of a label, and what came before it."""
        late_counts = label == ("backward", "counts")
        before, itself = _PARTS["replicas" if late_counts else label.kind]
        self.lap(before)
        self.start()
        yield
        self.lap(itself)
