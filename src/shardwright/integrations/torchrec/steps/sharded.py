"""The model of a task, sharded by a plan, in one rank of an existing process group."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec import KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardedModule, ShardingPlan
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from shardwright.errors import InvalidPlan
from shardwright.integrations.torchrec.conversion import sharding_plan_of
from shardwright.integrations.torchrec.models import (
    EPSILON,
    LEARNING_RATE,
    Lookups,
    TaskModel,
    local_batch_size,
    modules_for,
    sharders_for,
    torchrec_topology,
)
from shardwright.integrations.torchrec.problem import TorchRecProblem, problem_of
from shardwright.integrations.torchrec.rival import SHARDING_TYPES
from shardwright.measure.collectives.rank import Member
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import exchanges_otherwise
from shardwright.task.task import Task

_DENSE: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "rowwise_adagrad": RowWiseAdagrad,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
}
_REDUCED = ("row_wise", "table_row_wise", "grid")  # sharding types of pooled tables whose sums are reduced


def running_problem(task: Task, kind: str) -> TorchRecProblem:
    """Return the modules of a task as a problem, with every sharding type that TorchRec can execute.

    Args:
        task: the task.
        kind: "cpu" or "cuda"; need not be the device that the task was planned for.
    """
    every = {
        table.name: ParameterConstraints(sharding_types=[*SHARDING_TYPES.values(), "table_column_wise"])
        for table in task.tables
    }
    topology = torchrec_topology(task.topology, kind)
    return problem_of(modules_for(task), sharders_for(task, every_type=True), topology, local_batch_size(task), every)


@dataclass(frozen=True)
class ShardedModel:
    """A sharded model in one rank.

    Attributes:
        model: the model.
        dense: optimizer of replicated tables, which have no optimizer fused into backward; None without such tables.
    """

    model: DistributedModelParallel
    dense: torch.optim.Optimizer | None

    @classmethod
    def of(
        cls,
        task: Task,
        sharding_plan: ShardingPlan,
        member: Member,
        *,
        module: TaskModel | None = None,
        learning_rate: float = LEARNING_RATE,
    ) -> ShardedModel:
        """Shard the model of a task; every rank of the group must call this.

        Args:
            task: the task; TorchRec sees its hosts, even if the ranks run on other machines.
            sharding_plan: how to shard it.
            member: this rank.
            module: tables with the initial weights; random weights by default.
            learning_rate: learning rate of the embedding weights.
        """
        os.environ["LOCAL_WORLD_SIZE"] = str(task.topology.devices_per_host)  # TorchRec derives its hosts from it
        os.environ.update(RANK=str(member.rank), WORLD_SIZE=str(member.world))
        model = DistributedModelParallel(
            modules_for(task, "meta"),
            device=member.device,
            plan=sharding_plan,
            sharders=sharders_for(task, learning_rate=learning_rate, every_type=True, kind=member.device.type),
        )
        if module is not None:
            load_weights(module.state_dict(), model)
        replicated = [parameter for _, parameter in in_backward_optimizer_filter(model.named_parameters())]
        return cls(model, _dense_optimizer(task, replicated, learning_rate) if replicated else None)

    def forward(self, batch: KeyedJaggedTensor) -> Lookups:
        """Look up a batch of this rank's samples."""
        lookups: Lookups = self.model(batch)
        return lookups

    def outputs(self, batch: KeyedJaggedTensor) -> list[torch.Tensor]:
        """Look up a batch of this rank's samples; the values of all tables, after waiting for them."""
        return self.forward(batch).tensors()

    def update(self, outputs: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        """Propagate gradients and update all weights."""
        if self.dense is not None:
            self.dense.zero_grad()
        torch.autograd.backward(outputs, gradients)
        if self.dense is not None:
            self.dense.step()

    @property
    def sharded_modules(self) -> list[ShardedModule[Any, Any, Any, Any]]:
        """TorchRec's sharded modules inside the model."""
        return [module for module in self.model.modules() if isinstance(module, ShardedModule)]

    def lookup_modules(self) -> Iterator[nn.Module]:
        """Yield all modules inside the lookups, which TorchRec keeps in plain lists."""
        for sharded in self.sharded_modules:
            for lookup in sharded._lookups:
                yield from lookup.modules()


def planned(plan: Plan, kind: str) -> ShardingPlan:
    """Return TorchRec's sharding plan for the modules of a task.

    Raises:
        InvalidPlan: TorchRec cannot run the plan, or not in the exchange of its task, by which its step is predicted.
    """
    if (otherwise := exchanges_otherwise(plan.task)) is not None:
        raise InvalidPlan(f"{otherwise}: plan it without this exchange to train it with TorchRec")
    sharding_plan = sharding_plan_of(plan, running_problem(plan.task, kind))
    if (untrained := _untrained(plan, kind)) is not None:
        raise InvalidPlan(f"exchange has {untrained}: plan it with fp16 or bf16 and conversion 'codec'")
    return sharding_plan


def _untrained(plan: Plan, kind: str) -> str | None:
    """Types on the wire that TorchRec does not train with, and why; None if it does."""
    exchange, types = plan.task.exchange, (plan.task.exchange.values, plan.task.exchange.gradients)
    named = f"values '{types[0]}' and gradients '{types[1]}' by conversion '{exchange.conversion}'"
    plain = {"fp32", "fp16", "bf16"}
    if kind == "cpu" and not plain.issuperset(types):
        return f"{named}, and TorchRec has codecs of these types for GPUs alone"
    if exchange.conversion == "codec":
        dealt = any(table.pooled and plan.sharding_type(table.name) in _REDUCED for table in plan.task.tables)
        return f"{named}, and TorchRec's reduce-scatters have no int8 codec" if "int8" in types and dealt else None
    if not plain.issuperset(types) or types[0] != types[1]:
        return f"{named}, and TorchRec's kernels write fp16 or bf16 in both directions"
    return (
        f"{named}, and ranks of TorchRec without tables do not match it on CPUs"
        if kind == "cpu" and types[0] != "fp32"
        else None
    )


def load_weights(weights: Mapping[str, torch.Tensor], model: DistributedModelParallel) -> None:
    """Copy the weights of an unsharded model to this rank's shards of a sharded one; TorchRec itself draws new weights."""
    for name, target in model.state_dict().items():
        if not isinstance(target, ShardedTensor):
            target.copy_(weights[name])
            continue
        for shard in target.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(weights[name][row : row + rows, column : column + columns])


def _dense_optimizer(task: Task, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": learning_rate}
    if task.optimizer != "sgd":
        options["eps"] = EPSILON
    return _DENSE[task.optimizer](parameters, **options)
