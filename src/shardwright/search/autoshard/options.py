"""How AutoShard learns."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from shardwright.errors import InvalidInput


@dataclass(frozen=True)
class AutoShardOptions:
    """Options of a training; the defaults not named here are those of the paper and its public code.

    Attributes:
        steps: environment steps of the whole training. The paper makes 100,000; a million suit a simulated
            world, and 25,000 placements of 50 tables are more than one cares to measure.
        unroll: steps of an actor's unroll. An unroll holds whole episodes here, as many as come nearest.
        batch: unrolls of a learner step.
        actors: batches that the episodes of a round are played in, each with a seed of its own. Several make no better policy, only
            another one; they are for tasks of hundreds of tables, where the workers of a cluster can play them at once.
        lag: learner steps between two copies of the learner's policy to the actors: with what it is that old, the actors play.
        buffer: device shards in the replay buffer.
        buffer_batch: device shards of an update of the cost model.
        cost_updates: updates of the cost model in a learner step.
        scattered: random placements of very unequal devices that are measured for the cost model beside the policy's, in each round of
            `lag` learner steps. The paper has none; they are sets of all sizes, which a good policy no longer makes.
        variations: varied copies of each training task that are learned from as well, see `variations`. The paper has none; without, the
            cost model is about twice as wrong about tables it has not seen.
        learning_rate: of Adam, for both; falls linearly to 0.
        entropy_weight: of the entropy in the loss.
        value_weight: of the value's squared error in the loss.
        gradient_norm: gradients are scaled down to this norm.
        seed: of the weights, the tasks drawn, the actions.
    """

    steps: int = 1_000_000
    unroll: int = 100
    batch: int = 8
    actors: int = 1
    lag: int = 4
    buffer: int = 5_000
    buffer_batch: int = 512
    cost_updates: int = 20
    scattered: int = 16
    variations: int = 4
    learning_rate: float = 1e-3
    entropy_weight: float = 0.001
    value_weight: float = 0.5
    gradient_norm: float = 40.0
    seed: int = 0

    def __post_init__(self) -> None:
        least = dict.fromkeys(
            ("steps", "unroll", "batch", "actors", "lag", "buffer", "buffer_batch", "cost_updates"), 1
        )
        for name, lowest in (least | {"scattered": 1, "variations": 0, "seed": 0}).items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise InvalidInput(f"autoshard: {name} is {value!r}, must be a whole number of at least {lowest}")
        for name in ("learning_rate", "entropy_weight", "value_weight", "gradient_norm"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidInput(f"autoshard: {name} is {value!r}, must be a finite number of at least 0")

    @property
    def learner_steps(self) -> int:
        """Learner steps of the training."""
        return -(-self.steps // (self.unroll * self.batch))

    @property
    def rounds(self) -> int:
        """Rounds of the training: actors play, then the learner makes `lag` steps."""
        return -(-self.learner_steps // self.lag)

    def plain(self) -> dict[str, int | float]:
        """The options as JSON has them."""
        return asdict(self)
