"""Rank program of `dlrm_throughput.py`: trains a DLRM, dense layers included, on each plan in turns.

    python -m benchmarks.dlrm_rank '{"plans": ["plan.json"], "rounds": {…}, "batches": 30, "warm_up": 5}'

Prints {"reports": […], "seconds": […], "losses": […]}. Reports are those of `steps_rank.py`, of the embeddings alone. Seconds are of the
counted batches and losses of every batch, by plan and round.
"""

from __future__ import annotations

import gc
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torchrec import KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.optim.optimizers import in_backward_optimizer_filter

from benchmarks.steps_rank import main, steps
from shardwright.integrations.torchrec.models import Batches, local_batch_size, modules_for, sharders_for
from shardwright.integrations.torchrec.steps.phases import start_together
from shardwright.integrations.torchrec.steps.sharded import load_weights, planned
from shardwright.measure.collectives.rank import Member
from shardwright.sharding import Plan
from shardwright.task import Task

DENSE = 13  # features that are numbers
BOTTOM, TOP = (64,), (128, 64, 1)
"""Layers of the multilayer perceptrons; the bottom one ends with a layer of the tables' width."""
DENSE_RATE, TABLES_RATE = 0.003, 20.0
"""Learning rates of Adam and of SGD. The gradient of the mean loss is small for each row, so the rate of SGD is high."""
INITIAL = 0.1  # standard deviation of the tables' first weights; with TorchRec's smaller ones a DLRM learns nothing in a few steps
TABLES = "sparse_arch.embedding_bag_collection"
"""Name of the tables' module in the DLRM."""

Batch = tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]
"""Dense features, ids, and labels."""


def train(member: Member, request: dict[str, Any]) -> dict[str, Any]:
    """Measure the embeddings' steps, then the training of the whole model."""
    reports = steps(member, request)["reports"]
    plans = [Plan.load(Path(file)) for file in request["plans"]]
    seconds: list[list[float]] = [[] for _ in plans]
    losses: list[list[list[float]]] = [[] for _ in plans]
    for round_ in range(request["rounds"]["rounds"]):
        batches = drawn(plans[0].task, round_, member.rank, request["warm_up"] + request["batches"])
        for number, plan in enumerate(plans):
            took, of_batches = trained(plan, batches, request["warm_up"], member)
            seconds[number].append(max(of_rank for (of_rank,) in member.gather([took])))
            by_rank = torch.tensor(member.gather(of_batches), dtype=torch.float64)
            losses[number].append(by_rank.mean(dim=0).tolist())
            gc.collect()  # a model refers to itself
    return {"reports": reports, "seconds": seconds, "losses": losses}


def drawn(task: Task, seed: int, rank: int, count: int) -> list[Batch]:
    """The batches of a rank: ids by the tables' access, normal dense features, and labels that depend on both."""
    batches, generator = Batches(task, seed), torch.Generator().manual_seed(1000 * seed + rank)
    samples = local_batch_size(task)
    drawn_batches = []
    for step in range(count):
        ids, dense = batches.draw(step, rank), torch.randn(samples, DENSE, generator=generator)
        of_table = ids[task.tables[-1].name]
        sample = torch.repeat_interleave(torch.arange(samples), of_table.lengths())
        odd = torch.zeros(samples).index_add(0, sample, of_table.values() % 2 - 0.5)
        drawn_batches.append((dense, ids, (dense.mean(dim=1) + odd > 0).float()))
    return drawn_batches


def trained(plan: Plan, batches: list[Batch], warm_up: int, member: Member) -> tuple[float, list[float]]:
    """Train on the batches; return the seconds of those after the warm-up, and the loss of each batch."""
    model = sharded(plan, member)
    # Dense layers, and replicas: the optimizer of the other tables is fused into backward.
    rest = dict(in_backward_optimizer_filter(model.named_parameters()))
    replicas = [parameter for name, parameter in rest.items() if TABLES in name]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(replicas, lr=TABLES_RATE)] if replicas else []
    optimizers.append(torch.optim.Adam([rest[name] for name in rest if TABLES not in name], lr=DENSE_RATE))
    losses, started = [], 0.0
    for number, (dense, ids, labels) in enumerate(batches):
        if number == warm_up:
            start_together(member)
            started = perf_counter()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(dense, ids).squeeze(-1), labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.detach())
    return perf_counter() - started, [float(loss) for loss in losses]


def sharded(plan: Plan, member: Member) -> DistributedModelParallel:
    """A DLRM with the tables of a plan's task: tables as planned, dense layers on every rank; its first weights are always the same."""
    task = plan.task
    dlrm, weights = first_model(task)
    model = DistributedModelParallel(
        dlrm,
        device=member.device,
        plan=ShardingPlan({TABLES: planned(plan, "cpu").plan["pooled"]}),
        sharders=sharders_for(task, learning_rate=TABLES_RATE, every_type=True, kind="cpu"),
    )
    load_weights(weights, model)
    return model


def first_model(task: Task) -> tuple[DLRM, dict[str, torch.Tensor]]:
    """An unsharded DLRM with the tables of a task, and its first weights, which are always the same."""
    torch.manual_seed(0)
    dlrm = DLRM(modules_for(task, "cpu").pooled, DENSE, [*BOTTOM, task.tables[0].dim], list(TOP))
    weights = {name: tensor.clone() for name, tensor in dlrm.state_dict().items()}
    for name, tensor in weights.items():
        if name.startswith(TABLES):
            tensor.normal_(0.0, INITIAL)
    return dlrm, weights


if __name__ == "__main__":
    main(train)
