"""Training options of the learned strategies; each option is declared once, with its default and its bounds.

`PricedAutoShard` and `PricedDreamShard` are for policies that read the prices of a cost model. `AutoShardOptions` and `DreamShardOptions`
are for policies that read table features and learn a cost network too, as the papers' do: from measured costs, or as published.
`published` returns the options of a strategy's paper. Values that the papers do not give are this package's own.

References:
    [autoshard] Zha et al., AutoShard: Automated Embedding Table Sharding for Recommender Systems, KDD 2022.
    [dreamshard] Zha et al., DreamShard: Generalizable Embedding Table Placement for Recommender Systems, NeurIPS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeAlias

from shardwright.errors import InvalidInput
from shardwright.options import Options, number, whole

Objective: TypeAlias = Literal["step", "embedding"]
"""Meaning of the overall cost: step time, or the papers' embedding cost."""

Method: TypeAlias = Literal["shardwright", "paper"]
"""Whose networks, losses and rewards to use: this package's, or the paper's."""


@dataclass(frozen=True)
class LearningOptions(Options):
    """Options of a training.

    Attributes:
        strategy: name of the strategy that they belong to.
        published_values: the paper's values that differ from the defaults.
    """

    strategy: ClassVar[str]
    published_values: ClassVar[Mapping[str, Any]]

    @classmethod
    def published(cls, **changes: Any) -> Self:
        """The paper's options, with these changes."""
        return cls(**{**cls.published_values, **changes})

    def plain(self) -> dict[str, Any]:
        """The options as JSON can hold them. The method is left out unless it is the paper's, as files of older versions lack it."""
        return {name: value for name, value in vars(self).items() if (name, value) != ("method", "shardwright")}


@dataclass(frozen=True)
class AutoShardOptions(LearningOptions):
    """Options of AutoShard. Unless noted, the defaults are those of the paper and its public code.

    Attributes:
        steps: environment steps of the whole training. The paper makes 100,000. The default suits a simulated
            world; its roughly 25,000 placements of 50 tables are too many to measure.
        unroll: steps of an actor's unroll. Here an unroll holds whole episodes, as many as come closest to this number of steps.
        batch: unrolls per learner step.
        lag: learner steps between two rounds of episodes. Episodes come from a policy up to this many steps old.
        buffer: device shards in the replay buffer.
        buffer_batch: device shards per update of the cost model.
        cost_updates: updates of the cost model per learner step.
        scattered: random placements of very unequal devices that each round of `lag` learner steps prices for the cost model, beside the
            policy's own. The paper has none. They yield sets of all sizes, which a good policy no longer makes.
        variations: number of varied copies of each training task to learn from as well; see `with_variations`. The paper has none. Without
            them, the cost model errs about twice as much on tables that it has not seen.
        learning_rate: learning rate of Adam for policy and cost model; falls linearly to 0.
        entropy_weight: weight of the entropy in the loss.
        value_weight: weight of the value's squared error in the loss.
        gradient_norm: norm to which larger gradients are scaled down.
        seed: seed of the weights, the tasks drawn and the actions.
        method: "shardwright", or "paper": the networks learn and see costs in ms, and one Adam serves both losses.
    """

    prefix: ClassVar[str] = "autoshard: "
    strategy: ClassVar[str] = "autoshard"
    published_values: ClassVar[Mapping[str, Any]] = {
        "steps": 100_000,
        "scattered": 0,
        "variations": 0,
        "method": "paper",
    }

    steps: int = whole(1_000_000)
    unroll: int = whole(100)
    batch: int = whole(8)
    lag: int = whole(4)
    buffer: int = whole(5_000)
    buffer_batch: int = whole(512)
    cost_updates: int = whole(20)
    scattered: int = whole(16, least=0)
    variations: int = whole(4, least=0)
    learning_rate: float = number(1e-3)
    entropy_weight: float = number(0.001)
    value_weight: float = number(0.5)
    gradient_norm: float = number(40.0)
    seed: int = whole(0, least=0)
    method: Method = "shardwright"

    @property
    def rounds(self) -> int:
        """Number of rounds; each plays episodes, then makes `lag` learner steps."""
        learner_steps = -(-self.steps // (self.unroll * self.batch))
        return -(-learner_steps // self.lag)


@dataclass(frozen=True)
class DreamShardOptions(LearningOptions):
    """Options of DreamShard.

    The defaults are not the paper's values, which `preset=published` takes; `benchmarks/learned_published.py` compares both.

    Attributes:
        iterations: rounds; each collects costs, updates the cost network and updates the policy.
        collected: placements of training tasks, sampled from the policy, that the world prices in each iteration.
        explored: random placements of training tasks and variants that the world prices as well.
        cost_updates: updates of the cost network in each iteration.
        cost_batch: placements per update of the cost network.
        policy_updates: REINFORCE updates in each iteration.
        policy_tasks: tasks per policy update.
        episodes: episodes of each task per policy update; two or more, as their rewards are compared.
        variants: variants made of each training task: some of its tables, with rows, pooling factors and access profiles changed at
            random; see `dreamshard.buffer`.
        cost_rate: learning rate of Adam for the cost network; falls linearly to 0 over the iterations.
        policy_rate: the same for the policy.
        entropy_weight: weight of the policy's entropy in the loss; a larger weight keeps the policy undecided for longer.
        trace_decay: factor by which each further step counts less for the advantage of a step; the paper's is 1.
        objective: the overall cost: "step", the sum over phases of the slowest device's time, or "embedding", the papers'
            embedding cost, the sum over phases of the slowest device.
        seed: on one thread, the same seed gives the same policy.
        method: "shardwright", or "paper": the paper's logits, first weights, losses and rewards; see `dreamshard.network`.
    """

    prefix: ClassVar[str] = "dreamshard: "
    strategy: ClassVar[str] = "dreamshard"
    published_values: ClassVar[Mapping[str, Any]] = {
        "collected": 10, "explored": 0, "cost_updates": 300, "policy_updates": 10, "policy_tasks": 1, "episodes": 10, "variants": 0,
        "cost_rate": 5e-4, "policy_rate": 5e-4, "trace_decay": 1.0, "objective": "embedding", "method": "paper",
    }  # fmt: skip

    iterations: int = whole(10)
    collected: int = whole(50)
    explored: int = whole(250, least=0)
    cost_updates: int = whole(900)
    cost_batch: int = whole(64)
    policy_updates: int = whole(60)
    policy_tasks: int = whole(4)
    episodes: int = whole(16, least=2)
    variants: int = whole(6, least=0)
    cost_rate: float = number(2e-3, above=0)
    policy_rate: float = number(1e-2, above=0)
    entropy_weight: float = number(0.001)
    trace_decay: float = number(0.97, most=1)
    objective: Objective = "step"
    seed: int = whole(0, least=0)
    method: Method = "shardwright"

    @property
    def rounds(self) -> int:
        """Number of rounds, which are the iterations."""
        return self.iterations


@dataclass(frozen=True)
class PricedOptions(LearningOptions):
    """Options of the policy that reads prices; see `priced.training`.

    Attributes:
        rounds: number of rounds.
        tasks: tasks per update.
        episodes: copies of each task's placement, which are compared; fewer for tasks of many tables and devices.
        lag: updates per round, each with its own placements; the last update uses placements of a policy `lag` - 1 updates older.
        perturbed: share of tasks that are priced as on a synthetic device.
        learning_rate: learning rate of Adam; falls linearly to 2%.
        entropy_weight: weight of the policy's entropy in the loss.
        trace_decay: factor by which each later step counts less for the advantage of a step; DreamShard alone has it.
        seed: seed of the weights, the tasks drawn and the actions.
    """

    published_values: ClassVar[Mapping[str, Any]] = {}

    rounds: int = whole(1600)
    tasks: int = whole(8)
    episodes: int = whole(16, least=2)
    lag: int = whole(1)
    perturbed: float = number(0.7, most=1)
    learning_rate: float = number(4e-3, above=0)
    entropy_weight: float = number(0.001)
    trace_decay: float = number(0.97, most=1)
    seed: int = whole(0, least=0)


@dataclass(frozen=True)
class PricedDreamShard(PricedOptions):
    """Options of DreamShard that learns to place by prices."""

    prefix: ClassVar[str] = "dreamshard: "
    strategy: ClassVar[str] = "dreamshard"


@dataclass(frozen=True)
class PricedAutoShard(PricedOptions):
    """Options of AutoShard that learns to place by prices."""

    prefix: ClassVar[str] = "autoshard: "
    strategy: ClassVar[str] = "autoshard"

    rounds: int = whole(200)
    lag: int = whole(4)


PolicyOptions: TypeAlias = AutoShardOptions | DreamShardOptions | PricedOptions
"""Options of a policy's training, for policies of both kinds."""


@dataclass(frozen=True)
class RnnOptions(Options):
    """Options of the training of a task's network.

    Attributes:
        updates: gradient steps.
        episodes: plans drawn per gradient step.
        hidden: width of encoder and decoder; even, as the encoder reads in both directions.
        learning_rate: learning rate of Adam; falls linearly to a tenth.
        entropy: weight of the entropy bonus.
        decay: weight of the past in the moving average of costs that plans are compared with; less than 1.
    """

    prefix: ClassVar[str] = "rnn: "

    updates: int = whole(120)
    episodes: int = whole(16)
    hidden: int = whole(64)
    learning_rate: float = number(1e-2, above=0)
    entropy: float = number(0.01)
    decay: float = number(0.9, most=math.nextafter(1.0, 0.0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % 2:
            raise InvalidInput(f"rnn: hidden is {self.hidden}, must be even: half of it reads in each direction")
