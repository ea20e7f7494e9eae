"""The optimizer of a model's embedding tables."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.integrations.torchrec.modules import ShardableTable
from shardwright.task.task import OPTIMIZERS, Optimizer

_BY_STATE: tuple[tuple[str, Optimizer], ...] = (
    ("rowwiseadagrad", "rowwise_adagrad"),
    ("adagrad", "adagrad"),
    ("adam", "adam"),  # where one moment has a row's size only, more than there is
    ("lamb", "adam"),
    ("sgd", "sgd"),
    ("lars", "adagrad"),  # one momentum for each weight
)


def optimizer_of(tables: Iterable[ShardableTable]) -> Optimizer:
    """The optimizer with the most state among those of the tables; FBGEMM's default, SGD, where none is named.

    It is read where TorchRec reads it: the class that `apply_optimizer_in_backward` left on the weights, else `fused_params` of the
    sharder.
    """
    found: Optimizer = "sgd"
    seen: set[str] = set()
    for table in tables:
        classes = getattr(table.tensor, "_optimizer_classes", None)
        params = getattr(table.sharder, "fused_params", None) or {}
        named = classes[0].__name__ if classes else getattr(params.get("optimizer"), "value", params.get("optimizer"))
        seen.add(str(named or "sgd").lower().replace("_", ""))
    for name in seen:
        kind: Optimizer = next((ours for part, ours in _BY_STATE if part in name), "adam")
        if OPTIMIZERS.index(kind) > OPTIMIZERS.index(found):
            found = kind
    return found
