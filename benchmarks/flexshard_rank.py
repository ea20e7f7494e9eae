"""Rank program of `flexshard_measured.py`: runs plans on batches, times their exchanges and steps, reads the link's counters.

In an instrumented step, all ranks start every exchange together, so its time is that of the link without waits for slower ranks. Other
steps run unchanged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.flexshard_cases import Case, Log, Synthetic
from benchmarks.flexshard_model import EPS, LEARNING_RATE, SEED, loss_of
from benchmarks.hosts.inside import link_bytes
from benchmarks.hosts.together import common_start
from shardwright.runtime import ShardedEmbeddings, wire
from shardwright.sharding import Plan

TIMEOUT_S = 120.0
WARM_UP = 1


class Exchanges:
    """Replaces the runtime's all-to-all, and times it on request.

    Attributes:
        ms: ms of each exchange of the step, by phase.
        timing: whether to time exchanges.
        phase: "forward" or "backward".
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.ms: dict[str, list[float]] = {}
        self.timing, self.phase = False, "forward"

    def __call__(self, *arguments: Any, **named: Any) -> None:
        """Run one exchange."""
        if not self.timing:
            self._call(*arguments, **named)
            return
        started = common_start()
        self._call(*arguments, **named)
        self.ms.setdefault(self.phase, []).append(1e3 * (perf_counter() - started))

    def slowest(self) -> dict[str, list[float]]:
        """Return, by phase, the ms of each exchange until the last rank had its part; then forget them."""
        result = {}
        for phase, times in self.ms.items():
            all_times = torch.tensor(times, dtype=torch.float64)
            dist.all_reduce(all_times, dist.ReduceOp.MAX)
            result[phase] = all_times.tolist()
        self.ms = {}
        return result


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    send = wire.Arrival.send
    exchanges = Exchanges(send)
    wire.Arrival.send = lambda arrival, *sent: (exchanges if arrival.tag else send)(arrival, *sent)  # counts are small
    data = Case(**settings["case"]).data()
    for job in settings["jobs"]:
        figures = run_job(job, data, exchanges, settings["steps"])
        if dist.get_rank() == 0:
            print(json.dumps({"key": job["key"], **figures}), flush=True)
            with Path(settings["output"]).open("a") as file:
                file.write(json.dumps({"key": job["key"], **figures}) + "\n")
    with suppress(RuntimeError):  # a rank may be gone already
        dist.barrier()
    dist.destroy_process_group()


def run_job(job: Mapping[str, Any], data: Log | Synthetic, exchanges: Exchanges, steps: int) -> dict[str, Any]:
    """Run plain steps, timed only as a whole, and instrumented steps in turn; bytes are those of plain steps."""
    module = ShardedEmbeddings(
        Plan.load(job["plan"]), learning_rate=LEARNING_RATE, eps=EPS, initial=SEED, timeout=TIMEOUT_S
    )
    whole, exchanged, losses = [], [], []
    metered, counted = [], []
    for step in range(WARM_UP + 2 * steps):
        exchanges.timing = step >= WARM_UP and (step - WARM_UP) % 2 == 1
        module.traffic.reset()
        dist.barrier()
        before = link_bytes()
        ms, loss = one_step(module, data, exchanges, step)
        dist.barrier()
        sent = (link_bytes() - before).sent
        losses.append(total(loss))
        if step < WARM_UP:
            continue
        if exchanges.timing:
            exchanged.append(exchanges.slowest())
        else:
            whole.append(slowest(ms))
            metered.append(gathered(module.traffic.total("inter")))
            counted.append(gathered(sent))
    return {
        "forward_ms": [sum(phases.get("forward", [])) for phases in exchanged],
        "backward_ms": [sum(phases.get("backward", [])) for phases in exchanged],
        "exchanges": {phase: len(times) for phase, times in exchanged[0].items()},
        "step_ms": whole,
        "metered": metered,
        "counted": counted,
        "losses": losses,
    }


def one_step(module: ShardedEmbeddings, data: Log | Synthetic, exchanges: Exchanges, step: int) -> tuple[float, float]:
    """Return the ms of the step on this rank, and its part of the loss."""
    features = {
        table: tuple(torch.from_numpy(part) for part in parts)
        for table, parts in data.batch(step, dist.get_rank(), dist.get_world_size()).items()
    }
    started = perf_counter()
    exchanges.phase = "forward"
    looked_up = module(features)
    loss = loss_of({table: (rows.values, rows.lengths) for table, rows in looked_up.items()})
    exchanges.phase = "backward"
    loss.backward()
    return 1e3 * (perf_counter() - started), float(loss.detach())


def gathered(value: int) -> list[int]:
    values = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(values, torch.tensor([value]))
    return [int(own) for own in values]


def slowest(value: float) -> float:
    most = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


def total(value: float) -> float:
    added = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(added)
    return float(added)


if __name__ == "__main__":
    main()
