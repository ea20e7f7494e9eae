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
from shardwright.task.topology import Exchange

_DENSE: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "rowwise_adagrad": RowWiseAdagrad,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
}


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
    if kind == "cpu" and (odd := _not_on_cpus(plan.task.exchange)) is not None:
        raise InvalidPlan(
            f"exchange has {odd}, which TorchRec trains on GPUs alone: on CPUs use conversion 'codec' with fp16 or bf16"
        )
    return sharding_plan


def _not_on_cpus(exchange: Exchange) -> str | None:
    """The type on the wire that TorchRec cannot train on CPUs: there, ranks whose kernels write narrow types do not match others."""
    possible = ("fp32", "fp16", "bf16") if exchange.conversion == "codec" else ("fp32",)
    types = {"values": exchange.values, "gradients": exchange.gradients}
    odd = (
        f"{field} '{kind}' by conversion '{exchange.conversion}'"
        for field, kind in types.items()
        if kind not in possible
    )
    return next(odd, None)


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
