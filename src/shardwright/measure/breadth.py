"""How wide a collection samples: what a CPU's collections usually hold, and the whole range that a GPU's serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.errors import InvalidInput


@dataclass(frozen=True)
class Breadth:
    """Ranges and shares of sampled sets, beyond what a pool of tables gives.

    Attributes:
        batch_sizes: batch sizes; each sample draws one, so a size that is named twice comes twice as often.
        optimizers: optimizers inside backward; likewise.
        sequence_share: share of sets with sequences.
        sequence_dim_share: share of the sets with sequences in which these all have one dim, and so one fused call.
        largest_dim: dims are 4, 8, … up to this one.
        fp16_share: share of sets with weights in half precision; in a part of these each table is one or not.
        free_share: share of tables drawn from the whole ranges (rows, pooling, skew) in place of the pool.
        holders: numbers of devices that share the batch of a replicated table.
        lookup_bytes: what the lookups of a set may read at most, about: bounds the time and the memory that one sample takes.
    """

    batch_sizes: tuple[int, ...] = (1024,)
    optimizers: tuple[str, ...] = ("rowwise_adagrad",)
    sequence_share: float = 0.0
    sequence_dim_share: float = 0.0
    largest_dim: int = 128
    fp16_share: float = 0.0
    free_share: float = 0.0
    holders: tuple[int, ...] = (2, 4, 8, 16)
    lookup_bytes: float = float("inf")

    def request(self) -> dict[str, Any]:
        """What a store notes of this breadth beside batch sizes, optimizer and sequences: nothing where it is the usual one."""
        noted = (
            "optimizers",
            "sequence_dim_share",
            "largest_dim",
            "fp16_share",
            "free_share",
            "holders",
            "lookup_bytes",
        )
        usual = asdict(BREADTHS["usual"])
        own = {name: value for name, value in asdict(self).items() if name in noted and value != usual[name]}
        if len(self.optimizers) == 1:
            own.pop("optimizers", None)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}


BREADTHS: Mapping[str, Breadth] = {
    "usual": Breadth(),
    "wide": Breadth(
        batch_sizes=(8192, 16_384, 32_768, 65_536, 65_536),
        optimizers=("rowwise_adagrad", "rowwise_adagrad", "sgd"),
        sequence_share=0.2,
        sequence_dim_share=0.7,
        largest_dim=256,
        fp16_share=0.35,
        free_share=0.3,
        holders=(2, 4, 8, 16, 32, 64),
        lookup_bytes=16e9,
    ),
}
"""The named ones: "usual" is a CPU's default, "wide" a GPU's."""


def breadth_named(name: str) -> Breadth:
    """The breadth of this name.

    Raises:
        InvalidInput: there is none.
    """
    if name not in BREADTHS:
        raise InvalidInput(f"space is {name!r}, must be one of {', '.join(BREADTHS)}")
    return BREADTHS[name]
