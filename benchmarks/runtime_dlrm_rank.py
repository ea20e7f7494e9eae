"""Rank program of `runtime_dlrm.py`: trains a DLRM, dense layers included, on plans by TorchRec and by `shardwright.runtime`, in turns.

    python -m benchmarks.runtime_dlrm_rank '{"entries": [{"plan": "plan.json", "by": "shardwright"}], "rounds": 3, …}'

Prints {"seconds": […], "losses": […]} by entry and round: seconds of the counted batches, and the mean loss of each batch.
"""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor, KeyedTensor
from torchrec.models.dlrm import DLRM

from benchmarks import dlrm_rank
from benchmarks.dlrm_rank import DENSE_RATE, TABLES, TABLES_RATE, Batch, first_model
from benchmarks.steps_rank import main
from shardwright.integrations.torchrec.steps.phases import start_together
from shardwright.integrations.torchrec.steps.rank import quiet
from shardwright.measure.collectives.rank import Member
from shardwright.runtime import ShardedEmbeddings
from shardwright.sharding import Plan


class KeyedSums(torch.nn.Module):
    """ShardedEmbeddings in the place of an EmbeddingBagCollection."""

    def __init__(self, embeddings: ShardedEmbeddings) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """The sums of all features."""
        sums = self.embeddings(features)
        return KeyedTensor.from_tensor_list(list(sums), list(sums.values()))


def train(member: Member, request: dict[str, Any]) -> dict[str, Any]:
    """Train all entries, round by round."""
    quiet()
    entries, warm_up = request["entries"], request["warm_up"]
    plans = [Plan.load(Path(entry["plan"])) for entry in entries]
    seconds: list[list[float]] = [[] for _ in plans]
    losses: list[list[list[float]]] = [[] for _ in plans]
    for round_ in range(request["rounds"]):
        batches = dlrm_rank.drawn(plans[0].task, round_, member.rank, warm_up + request["batches"])
        for number, (entry, plan) in enumerate(zip(entries, plans, strict=True)):
            program = dlrm_rank.trained if entry["by"] == "torchrec" else partial(trained, ahead=entry["by"] == "ahead")
            took, of_batches = program(plan, batches, warm_up, member)
            seconds[number].append(max(of_rank for (of_rank,) in member.gather([took])))
            losses[number].append(torch.tensor(member.gather(of_batches), dtype=torch.float64).mean(dim=0).tolist())
            gc.collect()  # a model refers to itself
    return {"seconds": seconds, "losses": losses}


def trained(
    plan: Plan, batches: list[Batch], warm_up: int, member: Member, *, ahead: bool
) -> tuple[float, list[float]]:
    """Train on the batches by our runtime; return the seconds of those after the warm-up, and the loss of each batch."""
    model, tables = sharded(plan, member)
    dense_layers = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(dense_layers, lr=DENSE_RATE)
    losses, started = [], 0.0
    for number, (dense, ids, labels) in enumerate(batches):
        if number == warm_up:
            start_together(member)
            started = perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(dense, ids).squeeze(-1), labels)
        if ahead and number + 1 < len(batches):
            tables.prefetch(batches[number + 1][1])
        loss.backward()
        average([parameter.grad for parameter in dense_layers if parameter.grad is not None], member)
        optimizer.step()
        losses.append(loss.detach())
    return perf_counter() - started, [float(loss) for loss in losses]


def sharded(plan: Plan, member: Member) -> tuple[DLRM, ShardedEmbeddings]:
    """The DLRM of `dlrm_rank`, and its tables in our runtime. TorchRec averages gradients over ranks, we add them."""
    model, weights = first_model(plan.task)
    tables = ShardedEmbeddings(
        plan,
        learning_rate=TABLES_RATE / member.world,
        initial=lambda table, ids: weights[f"{TABLES}.embedding_bags.{table.name}.weight"][ids].numpy(),
        timeout=60.0,
    )
    model.sparse_arch.embedding_bag_collection = KeyedSums(tables)
    return model, tables


def average(gradients: list[torch.Tensor], member: Member) -> None:
    """Average the gradients of dense layers over ranks, all in one message."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= member.world
    for gradient, own in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(own.view_as(gradient))


if __name__ == "__main__":
    main(train)
