"""Options of the `rnn` baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright.errors import InvalidInput


@dataclass(frozen=True)
class RnnOptions:
    """How long and how the network of a task is trained.

    Attributes:
        updates: gradient steps.
        episodes: plans drawn for each of them.
        hidden: width of encoder and decoder; even, as the encoder reads in both directions.
        learning_rate: of Adam, falling linearly to a tenth.
        entropy: weight of the entropy bonus.
        decay: weight of the past in the moving average that plans are compared with.
    """

    updates: int = 120
    episodes: int = 16
    hidden: int = 64
    learning_rate: float = 1e-2
    entropy: float = 0.01
    decay: float = 0.9

    def __post_init__(self) -> None:
        for name in ("updates", "episodes", "hidden"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"rnn: {name} is {value!r}, must be a whole number of at least 1")
        if self.hidden % 2:
            raise InvalidInput(f"rnn: hidden is {self.hidden}, must be even: half of it reads in each direction")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InvalidInput(f"rnn: learning_rate is {self.learning_rate}, must be a finite number greater than 0")
        if not (math.isfinite(self.entropy) and self.entropy >= 0):
            raise InvalidInput(f"rnn: entropy is {self.entropy}, must be a finite number of at least 0")
        if not 0 <= self.decay < 1:
            raise InvalidInput(f"rnn: decay is {self.decay}, must be at least 0 and less than 1")
