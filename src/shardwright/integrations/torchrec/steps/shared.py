"""The exchange and the steps of `shardwright.runtime`, measured on the ranks that measure the links of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch

from shardwright.integrations.torchrec.models import Batches
from shardwright.integrations.torchrec.steps.phases import settle, start_together
from shardwright.measure.collectives.links import Rung
from shardwright.measure.collectives.rank import Member
from shardwright.runtime import ShardedEmbeddings
from shardwright.runtime.process_groups import Ranks
from shardwright.runtime.wire import Label, Sizes, TrafficMeter, Wire
from shardwright.sharding.plan import Plan
from shardwright.task.topology import Topology

_TIMEOUT = timedelta(seconds=60)


def exchange_call(rung: Rung, member: Member, hosts: int) -> Callable[[], Any]:
    """The exchange of a rung on this rank, with receives posted first."""
    ranks = Ranks.of(Topology(hosts, member.world // hosts), None, member.device, _TIMEOUT)
    members = ranks.host if rung.within else ranks.world
    wire = Wire(members, TrafficMeter(), member.device)
    rank = members.ranks.index(member.rank)
    sent, received = (np.array([counts]) for counts in rung.splits(rank, members.size))
    values, sizes = torch.zeros((int(sent.sum()), 1), device=member.device), Sizes(sent, received)
    return lambda: [wire.exchange(lambda _: values, sizes, [1], Label("forward", "values")) for _ in range(rung.calls)]


def steps_of(plan: Plan, member: Member, warm_up: int, steps: int) -> tuple[float, float]:
    """Median ms of a step of `ShardedEmbeddings`, and of the computing in it, each of the slowest rank."""
    module, batches = ShardedEmbeddings(plan, device=member.device, timeout=_TIMEOUT), Batches(plan.task, 0)
    times: list[float] = []
    for step in range(warm_up + steps):
        batch = batches.draw(step, member.rank).to(member.device)
        settle(member)
        start_together(member)
        started, computed = perf_counter(), thread_time()
        outputs = list(module(batch).values())
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
        settle(member)
        if step >= warm_up:
            times += [(perf_counter() - started) * 1e3, (thread_time() - computed) * 1e3]
    slowest = np.array(member.gather(times)).max(axis=0)
    return median(slowest[::2].tolist()), median(slowest[1::2].tolist())
