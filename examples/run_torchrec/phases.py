"""Times of the phases of a step, from torch's profiler.

The step runs phase by phase, each to its end, so that every phase has its own time. A step at full speed overlaps some phases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile
from torchrec import KeyedJaggedTensor
from torchrec.distributed.types import ShardedModule

from .sharded import ShardedModel

PHASES = ("input_dist_ms", "lookup_ms", "output_dist_ms", "backward_ms", "gradient_dist_ms")
"""In order: ids to the devices that hold the rows; the kernels; sums or rows back to the samples; backward with the optimizer, without
the exchange; the exchange of gradients inside backward. The all-reduce of replicas runs beside backward and counts as backward."""

_LABEL = "shardwright "
_EXCHANGES = re.compile(r"^(All2All|AllGather|ReduceScatter|Variable_?Batch)\w*(Req|Wait)Backward$")


def profiled_phases(
    sharded: ShardedModel, batches: Sequence[KeyedJaggedTensor], device: torch.device
) -> dict[str, float]:
    """Return median ms of each of `PHASES`, over one step for each batch; every rank must call this."""
    steps = []
    for batch in batches:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            _step(sharded, batch, device)
        steps.append(_times(profiler.events()))
    return {phase: median(times[phase] for times in steps) for phase in PHASES}


def _step(sharded: ShardedModel, batch: KeyedJaggedTensor, device: torch.device) -> None:
    outputs: list[torch.Tensor] = []
    dist.barrier()  # starting the profiler takes a different time on each rank
    for module in sharded.sharded_modules:
        outputs += _forward(module, batch, device)
    with record_function(_LABEL + "backward_ms"):
        sharded.update(outputs, [torch.ones_like(output) for output in outputs])
        _settle(device)


def _forward(
    module: ShardedModule[Any, Any, Any, Any], batch: KeyedJaggedTensor, device: torch.device
) -> list[torch.Tensor]:
    """Run the three phases of a sharded module's forward pass."""
    with record_function(_LABEL + "input_dist_ms"):
        context = module.create_context()
        received = module.input_dist(context, batch).wait().wait()
        _settle(device)
    with record_function(_LABEL + "lookup_ms"):
        found = module.compute(context, received)
        _settle(device)
    with record_function(_LABEL + "output_dist_ms"):
        result = module.output_dist(context, found).wait()
        tensors = [rows.values() for rows in result.values()] if isinstance(result, dict) else [result.values()]
        _settle(device)
    return tensors


def _times(events: Any) -> dict[str, float]:
    """Return the ms of each phase of one step."""
    times = dict.fromkeys(PHASES, 0.0)
    for event in events:
        if event.name.startswith(_LABEL):
            times[event.name.removeprefix(_LABEL)] += event.cpu_time_total / 1e3
        elif _EXCHANGES.match(event.name):
            times["gradient_dist_ms"] += event.cpu_time_total / 1e3
    times["backward_ms"] = max(0.0, times["backward_ms"] - times["gradient_dist_ms"])
    return times


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
