"""Kernel times of placements: encodings of blocks → sums in each fused call → times of calls → times of devices.

Scores, baselines, learned strategies, tuning and reports add up here. The engine does the same in `native/`, and a report's page in its
own code; tests compare both with this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.sharding.work import ShardWork, numbered_calls


@dataclass(frozen=True, eq=False)
class EncodedBlocks:
    """The encodings of n blocks.

    Attributes:
        model: the cost model that encoded them.
        latents: `(n, latent)` encodings.
        call: `(n,)` number of the fused call that each block joins.
    """

    model: CostModel
    latents: Floats
    call: Ints

    @classmethod
    def of(cls, model: CostModel, works: Sequence[ShardWork]) -> EncodedBlocks:
        """Encode blocks."""
        return cls(model, model.encode(works), np.array(numbered_calls(works), dtype=np.int64))

    def ledger(self, holders: int) -> Ledger:
        """An empty ledger for this many holders: devices, or units that move as one."""
        calls = int(self.call.max(initial=-1)) + 1
        return Ledger(
            self, np.zeros((holders, calls, self.latents.shape[1])), np.zeros((holders, calls), dtype=np.int64)
        )


@dataclass(frozen=True, eq=False)
class Ledger:
    """The sums of each holder in each fused call.

    Attributes:
        blocks: the blocks that can be added.
        sums: `(holders, calls, latent)` sums of encodings.
        counts: `(holders, calls)` number of blocks.
    """

    blocks: EncodedBlocks
    sums: Floats
    counts: Ints

    def add(self, holders: Ints, blocks: Ints) -> None:
        """Add each of `(k,)` blocks to the calls of its holder, one of `(k,)`."""
        call = self.blocks.call[blocks]
        np.add.at(self.sums, (holders, call), self.blocks.latents[blocks])
        np.add.at(self.counts, (holders, call), 1)

    def copy(self) -> Ledger:
        """An independent copy."""
        return replace(self, sums=self.sums.copy(), counts=self.counts.copy())

    @property
    def present(self) -> Bools:
        """`(holders, calls)` whether a holder makes the call."""
        return self.counts > 0

    def times(self) -> Floats:
        """`(holders, 2)` predicted forward and backward ms, each the sum over the fused calls; 0 for a holder without blocks.

        Raises:
            ShardwrightError: the cost model predicted NaN.
        """
        times = self.blocks.model.pricing.devices(self.sums, self.present)
        if np.isnan(times).any():
            raise ShardwrightError(
                f"cost model {self.blocks.model.name} predicted NaN; it must predict finite times: train it again"
            )
        return times
