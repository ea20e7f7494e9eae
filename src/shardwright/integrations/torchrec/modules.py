"""Find the tables of a model that TorchRec's sharders may shard, as TorchRec's enumerator finds them; also in sharded models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.planner.types import ParameterConstraints, ShardingOption
from torchrec.distributed.planner.utils import sharder_name
from torchrec.distributed.types import ModuleSharder, ShardedModule, ShardingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection

from shardwright.errors import InvalidInput

Sharder: TypeAlias = ModuleSharder[nn.Module]
Kernels: TypeAlias = Mapping[str, tuple[str, ...]]
"""Compute kernels by sharding type (TorchRec's names), fastest first."""


def kernels_where(may: Callable[[str, str], bool], kernels: Kernels) -> dict[str, tuple[str, ...]]:
    """The kernels that may run a sharding type; types without one are left out."""
    left = {kind: tuple(kernel for kernel in some if may(kind, kernel)) for kind, some in kernels.items()}
    return {kind: some for kind, some in left.items() if some}


@dataclass(frozen=True, eq=False)
class ShardableTable:
    """A table of a model.

    Attributes:
        path: path of the table's module in the model.
        name: name of the parameter in the module's part of a sharding plan.
        tensor: the weights; may lie on the meta device.
        module: the module that holds it.
        sharder: the sharder of the module.
        pooled: whether the rows of a sample are pooled.
        features: names of the features that look it up; empty if the module does not state them.
        weighted: whether the module states that its lookups have weights.
        tower: the tower to which the table belongs; all tables of a tower lie on one host. None outside of towers.
    """

    path: str
    name: str
    tensor: torch.Tensor
    module: nn.Module
    sharder: Sharder
    pooled: bool
    features: tuple[str, ...]
    weighted: bool = False
    tower: str | None = None

    @property
    def fused(self) -> Mapping[str, Any]:
        """The sharder's `fused_params`."""
        return getattr(self.sharder, "fused_params", None) or {}

    @property
    def optimizer(self) -> str | None:
        """Name of the optimizer that TorchRec fuses into the backward pass; None if none is named.

        That is the class that `apply_optimizer_in_backward` left on the weights, else that of the sharder's `fused_params`.
        """
        classes = getattr(self.tensor, "_optimizer_classes", None)
        fused = self.fused.get("optimizer")
        named = classes[0].__name__ if classes else getattr(fused, "value", fused)
        return str(named) if named else None

    @property
    def quantised(self) -> bool:
        """Whether the module is quantised for inference."""
        kinds = self.sharder.compute_kernels(ShardingType.TABLE_WISE.value, "cpu")
        return EmbeddingComputeKernel.QUANT.value in kinds

    @property
    def sharder_key(self) -> str:
        """Name of the module's type, by which TorchRec finds its sharder."""
        return str(sharder_name(type(self.module)))


def shardable_tables(
    module: nn.Module,
    sharders: Sequence[Sharder],
    compute_device: str,
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> list[ShardableTable]:
    """All tables of a model that one of the sharders may shard, in the order of TorchRec's enumerator.

    Args:
        module: the model; on any device.
        sharders: one for each type of module.
        compute_device: "cpu", "cuda" or "mtia"; tables of another device group are left out.
        constraints: constraints by name of the parameter.
    """
    by_type = {sharder_name(sharder.module_type): sharder for sharder in sharders}
    tables: list[ShardableTable] = []
    waiting = [("", module)]
    while waiting:
        path, part = waiting.pop()
        sharder = by_type.get(sharder_name(type(part)))
        if sharder is None:
            waiting += [(f"{path}.{name}" if path else name, child) for name, child in part.named_children()]
            continue
        pooled, stated = ShardingOption.module_pooled(part, path), _stated(part, path)
        for name, tensor in sharder.shardable_parameters(part).items():
            given = constraints.get(name) if constraints else None
            if given and given.device_group and given.device_group != compute_device:
                continue
            tables.append(
                ShardableTable(path, name, tensor, part, sharder, pooled, *stated.get(name, ((), False, None)))
            )
    return tables


def unsharded(module: nn.Module, path: str = "") -> nn.Module:
    """Copy a model, with each sharded collection replaced by an unsharded one on the meta device.

    The given model stays as it is. Both models share the weights of all other modules.

    Raises:
        InvalidInput: a sharded module is of a type whose tables cannot be read.
    """
    if isinstance(module, (ShardedEmbeddingBagCollection, ShardedEmbeddingCollection)):
        return _collection_of(module)
    if isinstance(module, ShardedModule):
        raise InvalidInput(
            f"{path}: is a sharded {type(module).__name__}, must be a collection of embeddings or of embedding bags; pass the model as it "
            "was before sharding, and sharding_plan"
        )
    result = copy.copy(module)
    result._modules = {
        name: None if child is None else unsharded(child, f"{path}.{name}" if path else name)
        for name, child in module._modules.items()
    }
    return result


def _collection_of(sharded: Any) -> nn.Module:
    meta = torch.device("meta")
    collection: nn.Module
    if isinstance(sharded, ShardedEmbeddingBagCollection):
        collection = EmbeddingBagCollection(sharded._embedding_bag_configs, sharded._is_weighted, meta)
    else:
        collection = EmbeddingCollection(sharded._embedding_configs, meta, sharded._need_indices)
    for weight in collection.parameters():  # restores the mark of `apply_optimizer_in_backward`, which sharding removed
        setattr(weight, "_optimizer_classes", [type(_optimizer_of(sharded), (), {})])  # noqa: B010 - no attribute of the type
    return collection


def _optimizer_of(sharded: Any) -> str:
    """FBGEMM's name of the optimizer, read from the calls of all ranks, because this rank may hold no table."""
    by_type = getattr(sharded, "_sharding_type_to_sharding", {})
    for sharding in getattr(sharded, "_embedding_shardings", [*by_type.values()]):
        for groups in sharding._grouped_embedding_configs_per_rank:
            for group in groups:
                if "optimizer" in (group.fused_params or {}):
                    return str(group.fused_params["optimizer"].value)
    return "sgd"


def _stated(module: nn.Module, path: str) -> dict[str, tuple[tuple[str, ...], bool, str | None]]:
    """Features, weights and tower by table, as far as the module states them.

    Towers have the names that TorchRec's enumerator gives them.
    """
    parts: list[tuple[str | None, Any]] = [(None, module)]
    if isinstance(module, EmbeddingTower):
        parts = [(path, module.embedding)]
    elif isinstance(module, EmbeddingTowerCollection):
        parts = [(f"{path}.tower_{number}", tower.embedding) for number, tower in enumerate(module.towers)]
    stated = {}
    for tower, part in parts:
        weighted = bool(getattr(part, "is_weighted", bool)())
        for reader in ("embedding_bag_configs", "embedding_configs"):
            for config in getattr(part, reader, list)():
                stated[config.name] = (tuple(config.feature_names), weighted, tower)
    return stated
