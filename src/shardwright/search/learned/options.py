"""How the learned strategies train: an option is declared once, with its default and its bounds.

`published` sets the options of a strategy to its paper's. Figures not named in the papers are those of this package.

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
"""What the overall cost is: step time, or the papers' embedding cost."""

Method: TypeAlias = Literal["shardwright", "paper"]
"""Whose networks, losses and rewards: this package's, or the paper's."""


@dataclass(frozen=True)
class LearningOptions(Options):
    """Options of a training.

    Attributes:
        strategy: whose they are.
        published_values: the paper's, where they differ from the defaults.
    """

    strategy: ClassVar[str]
    published_values: ClassVar[Mapping[str, Any]]

    @classmethod
    def published(cls, **changes: Any) -> Self:
        """The paper's options, but for changes."""
        return cls(**{**cls.published_values, **changes})

    def plain(self) -> dict[str, Any]:
        """The options as JSON has them; the method only where it is the paper's, as files from before there was a choice lack it."""
        return {name: value for name, value in vars(self).items() if (name, value) != ("method", "shardwright")}


@dataclass(frozen=True)
class AutoShardOptions(LearningOptions):
    """How AutoShard learns; the defaults not named here are those of the paper and its public code.

    Attributes:
        steps: environment steps of the whole training. The paper makes 100,000; a million suit a simulated
            world, and 25,000 placements of 50 tables are more than one cares to measure.
        unroll: steps of an actor's unroll. An unroll holds whole episodes here, as many as come nearest.
        batch: unrolls of a learner step.
        lag: learner steps from one round of episodes to the next: so old may the policy be that they were played by.
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
        method: "shardwright", or "paper": costs are learned and seen in ms, and one Adam steps for both losses.
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
        """Rounds of the training: episodes are played, then the learner makes `lag` steps."""
        learner_steps = -(-self.steps // (self.unroll * self.batch))
        return -(-learner_steps // self.lag)


@dataclass(frozen=True)
class DreamShardOptions(LearningOptions):
    """How DreamShard learns.

    The paper's values take 20 s on tasks of 50 unseen tables on 4 devices and close a tenth of the distance from the best heuristic to
    the bound; the defaults here take under two minutes and close half of it.

    Attributes:
        iterations: rounds of collecting costs, updates of the cost network and updates of the policy.
        collected: placements of training tasks, sampled from the policy, that the world prices in each iteration.
        explored: random placements of training tasks and variants that it prices as well.
        cost_updates: updates of the cost network in each iteration.
        cost_batch: placements an update of the cost network learns from.
        policy_updates: REINFORCE updates in each iteration.
        policy_tasks: tasks whose episodes an update plays.
        episodes: episodes an update plays of each task; two or more, as their rewards are compared.
        variants: tasks made of each training task, with rows, pooling factors and access profiles of its tables changed at random; see
            `variants`.
        cost_rate: learning rate of Adam for the cost network; falls linearly to 0 over the iterations.
        policy_rate: the same for the policy.
        entropy_weight: how much a policy that stays undecided is preferred.
        trace_decay: how much the outcome of later steps counts for a step, each further step by this factor less; the paper's is 1.
        objective: what the overall cost is: "step", the sum over phases of the slowest device's time, or "embedding", the papers'
            embedding cost, the slowest device's sum.
        seed: the same seed gives the same policy, on one thread.
        method: "shardwright", or "paper": its logits, first weights, losses and rewards; see `network`.
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
        """Rounds of the training."""
        return self.iterations


@dataclass(frozen=True)
class RnnOptions(Options):
    """How long and how the network of a task is trained.

    Attributes:
        updates: gradient steps.
        episodes: plans drawn for each of them.
        hidden: width of encoder and decoder; even, as the encoder reads in both directions.
        learning_rate: of Adam, falling linearly to a tenth.
        entropy: weight of the entropy bonus.
        decay: weight of the past in the moving average that plans are compared with; less than 1.
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
