"""The tables of a model that TorchRec's sharders may shard, found as its enumerator finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints, ShardingOption
from torchrec.distributed.planner.utils import sharder_name
from torchrec.distributed.types import ModuleSharder

Sharder: TypeAlias = ModuleSharder[nn.Module]


@dataclass(frozen=True, eq=False)
class ShardableTable:
    """A table of a model.

    Attributes:
        path: path of its module in the model.
        name: name of the parameter in the module's part of a sharding plan.
        tensor: the weights; may lie on the meta device.
        module: the module that holds it.
        sharder: the sharder of the module.
        pooled: whether the rows of a sample are pooled.
        features: names of the features that look it up; empty where the module does not say.
    """

    path: str
    name: str
    tensor: torch.Tensor
    module: nn.Module
    sharder: Sharder
    pooled: bool
    features: tuple[str, ...]

    @property
    def sharder_key(self) -> str:
        """Name of the module's type, as TorchRec's sharders go by."""
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
        constraints: by name of the parameter.
    """
    by_type = {sharder_name(sharder.module_type): sharder for sharder in sharders}
    found: list[ShardableTable] = []
    waiting = [("", module)]
    while waiting:
        path, part = waiting.pop()
        sharder = by_type.get(sharder_name(type(part)))
        if sharder is None:
            waiting += [(f"{path}.{name}" if path else name, child) for name, child in part.named_children()]
            continue
        pooled, features = ShardingOption.module_pooled(part, path), _features_of(part)
        for name, tensor in sharder.shardable_parameters(part).items():
            given = constraints.get(name) if constraints else None
            if given and given.device_group and given.device_group != compute_device:
                continue
            found.append(ShardableTable(path, name, tensor, part, sharder, pooled, features.get(name, ())))
    return found


def _features_of(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Features by table, where the module has configurations."""
    configs: list[Any] = []
    for reader in ("embedding_bag_configs", "embedding_configs"):
        method = getattr(module, reader, None)
        if callable(method):
            configs += method()
    return {config.name: tuple(config.feature_names) for config in configs}
