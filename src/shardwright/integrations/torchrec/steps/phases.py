"""Times of the phases of a step, from torch's profiler.

The step runs phase by phase, each to its end, so that every phase has its own time. All ranks start each of these phases together, so that
the time of an exchange does not include the wait for a slower rank's kernel. Predictions also take the maximum over devices of every phase.
A step at full speed overlaps some phases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile
from torchrec import KeyedJaggedTensor
from torchrec.distributed.types import ShardedModule

from shardwright.integrations.torchrec.steps.sharded import ShardedModel
from shardwright.measure.collectives.rank import Member

PHASES = ("input_dist_ms", "lookup_ms", "output_dist_ms", "backward_ms", "gradient_dist_ms")
"""In order: ids to the devices that hold the rows; the kernels; sums or rows back to the samples; backward with the optimizer, without
the exchange; the exchange of gradients inside backward, and the all-reduce of replicas, part of which may run beside the kernels."""

_LABEL = "shardwright "
_EXCHANGES = re.compile(r"^(All2All|AllGather|ReduceScatter|Variable_?Batch)\w*(Req|Wait)Backward$")
_ALL_REDUCE = re.compile("(gloo|nccl):all_reduce")  # outside of backward, ranks agree on a start by one


def profiled_phases(
    sharded: ShardedModel, batches: Sequence[KeyedJaggedTensor], member: Member
) -> dict[str, list[float]]:
    """Return the ms of each of `PHASES` in one step for each batch; every rank must call this."""
    steps = []
    for batch in batches:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            _step(sharded, batch, member)
        steps.append(_times(profiler.events()))
    return {phase: [times[phase] for times in steps] for phase in PHASES}


def start_together(member: Member) -> None:
    """Wait until all ranks are here. On one machine they continue at the same instant; from a barrier they would leave one by one."""
    member._wait_until(member._common_start())


def settle(member: Member) -> None:
    """Wait until the device has done all its work."""
    if member.device.type == "cuda":
        torch.cuda.synchronize(member.device)


def _step(sharded: ShardedModel, batch: KeyedJaggedTensor, member: Member) -> None:
    outputs: list[torch.Tensor] = []
    for module in sharded.sharded_modules:
        outputs += _forward(module, batch, member)
    gradients = [torch.ones_like(output) for output in outputs]
    start_together(member)
    with record_function(_LABEL + "backward_ms"):
        sharded.update(outputs, gradients)
        settle(member)


def _forward(module: ShardedModule[Any, Any, Any, Any], batch: KeyedJaggedTensor, member: Member) -> list[torch.Tensor]:
    """Run the three phases of a sharded module's forward pass."""
    start_together(member)
    with record_function(_LABEL + "input_dist_ms"):
        context = module.create_context()
        received = module.input_dist(context, batch).wait().wait()
        settle(member)
    start_together(member)
    with record_function(_LABEL + "lookup_ms"):
        looked_up = module.compute(context, received)
        settle(member)
    start_together(member)
    with record_function(_LABEL + "output_dist_ms"):
        result = module.output_dist(context, looked_up).wait()
        tensors = [rows.values() for rows in result.values()] if isinstance(result, dict) else [result.values()]
        settle(member)
    return tensors


def _times(events: Any) -> dict[str, float]:
    """Return the ms of each phase of one step."""
    times = dict.fromkeys(PHASES, 0.0)
    for event in events:
        if event.name.startswith(_LABEL):
            times[event.name.removeprefix(_LABEL)] += event.cpu_time_total / 1e3
    (backward,) = (event.time_range for event in events if event.name == _LABEL + "backward_ms")
    for event in events:
        of_replicas = _ALL_REDUCE.match(event.name) and backward.start <= event.time_range.start <= backward.end
        if of_replicas or _EXCHANGES.match(event.name):
            times["gradient_dist_ms"] += event.cpu_time_total / 1e3
    times["backward_ms"] = max(0.0, times["backward_ms"] - times["gradient_dist_ms"])
    return times
