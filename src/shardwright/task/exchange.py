"""How devices exchange rows and gradients of sequence tables: what repeats in a batch may travel once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias, get_args

from shardwright.errors import InvalidInput

Deduplication: TypeAlias = Literal["none", "device", "host"]
ReplicaGradients: TypeAlias = Literal["whole", "touched", "cheaper"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "deduplicate": get_args(Deduplication),
    "replica_gradients": get_args(ReplicaGradients),
}


@dataclass(frozen=True)
class Exchange:
    """What the ranks of a job do with rows that several samples of a step look up. Pooled tables are not concerned.

    Attributes:
        deduplicate: "none": every looked-up row travels, as in TorchRec and as FlexShard describes it. "device": a device asks
            for each distinct row of its samples once. "host": the devices of a host share what they ask for, so that
            a row crosses the link between two hosts once a step.
        replica_gradients: how replicas of a block agree on its gradient. "whole": all of it is reduced. "touched": only rows that a
            sample of the step looked up. "cheaper": whichever of the two takes fewer bytes for the block, by expectation.
    """

    deduplicate: Deduplication = "none"
    replica_gradients: ReplicaGradients = "whole"

    def __post_init__(self) -> None:
        for field in fields(self):
            value, known = getattr(self, field.name), _CHOICES[field.name]
            if value not in known:
                raise InvalidInput(f"exchange: {field.name} is {value!r}, must be one of {', '.join(known)}")


AS_TORCHREC = Exchange()
"""Every looked-up row travels, and whole gradients are reduced."""
