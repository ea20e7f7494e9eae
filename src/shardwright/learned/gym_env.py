"""The placement environment with Gymnasium's interface, so that any agent can be trained on it.

An episode places one task. Its units (whole tables, or blocks of tables that are cut) come up one after another, the heaviest first. An
action is the device of the current unit. Observations have a fixed size; devices that the task lacks are zeros.

Shapes: u units, f features, d devices (of the largest task).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from shardwright.errors import InfeasibleTask, InvalidInput, MissingDependency
from shardwright.learned.arrays import TABLE_FEATURES, Floats, Ints, PlacementArrays
from shardwright.learned.environment import Environment, PlacementBatch
from shardwright.learned.worlds import World, compute_ms, step_ms
from shardwright.search.units import Eligible, place_all
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.utils import seeding
except ImportError as missing:
    raise MissingDependency(
        "the Gymnasium environment needs gymnasium, which is not installed; install it with: pip install 'shardwright[learn]'"
    ) from missing

Observation: TypeAlias = dict[str, npt.NDArray[np.float32]]
Reward: TypeAlias = Literal["balance", "step"]

PENALTY = -1.0
"""Reward of an episode that ends before all units are placed; lower than the reward of any complete placement."""

_LIMIT = 10.0  # standard deviations at which features are clipped, so that observations have finite bounds


class EpisodeTask:
    """A task, the order in which its units come up, and the cost of a greedy placement.

    Args:
        task: the task.
        number: number of the task, for messages.
        world: prices the greedy placement.

    Attributes:
        arrays: the task as arrays.
        batch: a batch of this task alone.

    Raises:
        InvalidInput: the task has nothing to place.
        InfeasibleTask: a table fits no device.
    """

    def __init__(self, task: Task, number: int, world: World) -> None:
        self.number = number
        self.arrays = PlacementArrays.of(task)
        if not len(self.arrays):
            raise InvalidInput(
                f"task {number} has nothing to place: the devices of all its shards are settled; leave it out"
            )
        self.batch = PlacementBatch.of([self.arrays])
        self._world = world

    @cached_property
    def weights(self) -> Floats:
        """`(u,)` pooling factor × dim of each unit, summed over its blocks."""
        columns = [TABLE_FEATURES.index(name) for name in ("log_dim", "log_pooling")]
        sizes = np.exp(self.arrays.features[:, columns].sum(axis=1))
        return np.bincount(self.arrays.unit_of, sizes).astype(np.float64)

    @cached_property
    def order(self) -> torch.Tensor:
        """`(1, u)` units, the heaviest first."""
        return torch.from_numpy(np.argsort(-self.weights, kind="stable"))[None]

    def place_greedily(self) -> Ints:
        """`(u,)` device of each unit, if each goes to the device with the least weight so far among those with room.

        Raises:
            InfeasibleTask: a unit finds no room.
        """
        loads = np.zeros(self.arrays.devices)
        devices = np.zeros(len(self.arrays), dtype=np.int64)

        def choose(unit: int, eligible: Eligible) -> int:
            devices[unit] = eligible[np.argmin(loads[eligible])]
            loads[devices[unit]] += self.weights[unit]
            return int(devices[unit])

        try:
            place_all(self.arrays.task, self.arrays.units, self.order[0].tolist(), choose)
        except InfeasibleTask as error:
            raise InfeasibleTask(
                f"task {self.number}: the greedy placement that rewards are relative to fails: {error}; or take reward='balance'"
            ) from None
        return devices

    @cached_property
    def greedy_ms(self) -> float:
        """Step time of the greedy placement."""
        (phases,) = self._world.costs([(self.arrays, self.place_greedily())])
        return step_ms(phases)


class PlacementEnv(gymnasium.Env[Observation, np.int64]):
    """A Gymnasium environment; each episode places the units of one task, drawn at random.

    Observations are a dictionary:

    - unit `(f,)`: standardised table features of the current unit, summed over its blocks.
    - placed `(1,)`: share of the task's units that are placed.
    - sums `(d, f)`: the same features, summed over the blocks that each device holds.
    - used `(d,)`: share of each device's memory that is taken.
    - exists `(d,)`: 1 for devices that the task has.
    - mask `(d,)`: 1 for devices that may take the unit; `action_masks()` and `info["action_mask"]` give the same as booleans.

    An episode ends with the reward `PENALTY` if the mask forbids the action, or if no device may take the next unit. Every other step
    before the last has the reward 0.

    Args:
        tasks: tasks to draw episodes from; `reset(options={"task": n})` takes task n, counted from 0.
        world: prices placements.
        seed: seed of the draws until `reset` receives one.
        reward: reward of the last step. "balance": the degree of balance, kernel time of the fastest over the slowest device, as in
            AutoShard. "step": step time of the greedy placement over that of this placement, less 1.
        like: environment whose feature scales and number of devices to use; for test tasks, the environment of the training tasks.

    Raises:
        InvalidInput: there are no tasks, or a task has nothing to place or more devices than `like`.
        InfeasibleTask: a table of a task fits no device; or, for the reward "step", the greedy placement finds no room.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - declared so by Gymnasium
    action_space: spaces.Discrete[np.int64]
    _now: EpisodeTask
    _environment: Environment
    _mask: torch.Tensor
    _scaled: Floats
    _sums: Floats

    def __init__(
        self,
        tasks: Sequence[Task],
        world: World,
        seed: int = 0,
        *,
        reward: Reward = "step",
        like: PlacementEnv | None = None,
        render_mode: None = None,
    ) -> None:
        self.render_mode = render_mode
        self._tasks = [EpisodeTask(task, number, world) for number, task in enumerate(tasks)]
        if not self._tasks:
            raise InvalidInput("tasks is empty; an environment needs at least one task")
        if reward == "step":
            for task in self._tasks:
                task.place_greedily()
        self._world = world
        self._reward = reward
        self._np_random, self._np_random_seed = seeding.np_random(seed)
        features = np.concatenate([each.arrays.features for each in self._tasks])
        self._mean, self._deviation = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-3)
        self._devices = max(each.arrays.devices for each in self._tasks)
        if like is not None:
            self._take_scales(like)
        self.action_space = spaces.Discrete(self._devices)
        self.observation_space = self._space()  # type: ignore[assignment]
        self._start(self._tasks[0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with a task drawn at random, or with task number `options["task"]`.

        Raises:
            InvalidInput: there is no task with that number.
        """
        super().reset(seed=seed)
        number = (options or {}).get("task")
        if number is None:
            number = int(self.np_random.integers(len(self._tasks)))
        if not isinstance(number, int) or not 0 <= number < len(self._tasks):
            raise InvalidInput(f"options: task is {number!r}, must be a whole number from 0 to {len(self._tasks) - 1}")
        self._start(self._tasks[number])
        return self._observation(), self._info()

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Put the current unit on a device."""
        if not 0 <= int(action) < self._devices or not self.action_masks()[int(action)]:
            return self._observation(), PENALTY, True, False, self._info()
        self._sums[int(action)] += self._scaled[int(self._environment.current_e[0])]
        self._environment.step(torch.tensor([int(action)]), self._mask)
        if self._environment.done:
            self._mask = torch.zeros_like(self._mask)
            return self._observation(), self._last_reward(), True, False, self._info()
        self._mask = self._environment.mask()
        stuck = not bool(self._mask.any())
        return self._observation(), PENALTY if stuck else 0.0, stuck, False, self._info()

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """`(d,)` devices that may take the current unit."""
        mask = np.zeros(self._devices, dtype=bool)
        mask[: self._mask.shape[1]] = self._mask[0].numpy()
        return mask

    def plan(self, strategy: str = "gymnasium", seed: int = 0) -> Plan:
        """The plan that the finished episode made.

        Raises:
            InvalidInput: the episode is not over, or it failed.
        """
        assignment = self._environment.assignment_eu[0].numpy()
        if (assignment < 0).any():
            raise InvalidInput(
                f"{int((assignment < 0).sum())} units are not placed, so there is no plan; call step until the episode ends"
            )
        return self._now.arrays.plan(assignment, strategy, seed)

    def _start(self, task: EpisodeTask) -> None:
        self._now = task
        arrays = task.arrays
        self._environment = Environment(task.batch, task.order)
        self._mask = self._environment.mask()
        blocks = np.clip((arrays.features - self._mean) / self._deviation, -_LIMIT, _LIMIT)
        fixed = np.clip((arrays.fixed_features - self._mean) / self._deviation, -_LIMIT, _LIMIT)
        self._scaled = np.zeros((len(arrays), blocks.shape[1]))
        np.add.at(self._scaled, arrays.unit_of, blocks)
        self._sums = np.zeros((self._devices, blocks.shape[1]))
        self._sums[: arrays.devices] += arrays.fixed_on.T @ fixed

    def _take_scales(self, like: PlacementEnv) -> None:
        if self._devices > like._devices:
            raise InvalidInput(
                f"a task has {self._devices} devices, but the environment passed as like has {like._devices}; "
                f"make that one with a task of at least {self._devices} devices"
            )
        self._mean, self._deviation, self._devices = like._mean, like._deviation, like._devices

    def _space(self) -> spaces.Dict:
        width, devices = len(TABLE_FEATURES), self._devices
        most = max(len(each.arrays.features) + len(each.arrays.fixed_features) for each in self._tasks)
        bound = _LIMIT * most
        return spaces.Dict(
            {
                "unit": spaces.Box(-bound, bound, (width,), np.float32),
                "placed": spaces.Box(0.0, 1.0, (1,), np.float32),
                "sums": spaces.Box(-bound, bound, (devices, width), np.float32),
                "used": spaces.Box(0.0, 1.0, (devices,), np.float32),
                "exists": spaces.Box(0.0, 1.0, (devices,), np.float32),
                "mask": spaces.Box(0.0, 1.0, (devices,), np.float32),
            }
        )

    def _observation(self) -> Observation:
        environment, arrays = self._environment, self._now.arrays
        used = np.zeros(self._devices)
        used[: arrays.devices] = environment.used_ed[0].numpy() / np.maximum(arrays.memory, 1)
        unit = np.zeros(len(TABLE_FEATURES)) if environment.done else self._scaled[int(environment.current_e[0])]
        parts = {
            "unit": unit,
            "placed": np.array([environment.step_index / len(arrays)]),
            "sums": self._sums,
            "used": used,
            "exists": np.arange(self._devices) < arrays.devices,
            "mask": self.action_masks(),
        }
        return {name: part.astype(np.float32) for name, part in parts.items()}

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks()}

    def _last_reward(self) -> float:
        (phases,) = self._world.costs([(self._now.arrays, self._environment.assignment_eu[0].numpy())])
        if self._reward == "balance":
            kernels = compute_ms(phases)
            return float(kernels.min() / max(kernels.max(), 1e-9))
        return self._now.greedy_ms / max(step_ms(phases), 1e-9) - 1
