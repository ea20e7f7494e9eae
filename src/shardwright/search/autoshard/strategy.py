"""AutoShard (KDD 2022): units placed one after another by a learned policy, greedily, with numpy alone.

Facts of the networks, from the paper and the authors' public code:

    encoding of a table   = relu(128→32 · relu(21→128 · standardised features))                      32 numbers
    cost of a device      = 64→1 · relu(32→64 · sum of its tables' encodings)                        forward + backward ms
    input of the LSTM     = encoding of the table to place, relu(1→32 · share of tables placed)      64
    state                 = output of a two-layer LSTM                                               64
    device                = sum of its encodings, relu(2→32 · predicted cost and memory)             64
    logit of a device     = 192→128→128→64→1 · (state, device, state × device)
    value                 = 64→64→1 · state

Letters: n units, d devices. Weights are stored `(in, out)`.

The first layer of the policy, W · (state, device, state × device), is (W_device + W_both · diag(state)) · device + W_state · state: one
matrix a step serves all devices.

References:
    [autoshard] Zha et al., AutoShard: Automated Embedding Table Sharding for Recommender Systems, KDD 2022.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwright.cost.model import CostModel
from shardwright.cost.neuroshard.model import Layers, check_weights, evaluate, layer_shapes, layers_of
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.schema import Place
from shardwright.search.learned.arrays import TABLE_FEATURES, Ints, PlacementArrays
from shardwright.search.learned.policy_files import SavedPolicy, bundled_policy, load_policy
from shardwright.search.strategy import why_not_counted
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task
from shardwright.task.units import format_bytes

Floats = npt.NDArray[np.float64]

NAME = "autoshard"
FEATURES, ENCODING, STATE = len(TABLE_FEATURES), 32, 64
ENCODER_SIZES = (FEATURES, 128, ENCODING)
COST_SIZES = (ENCODING, 64, 1)
SHARE_SIZES = (1, STATE - ENCODING)
DEVICE_SIZES = (2, STATE - ENCODING)
POLICY_SIZES = (3 * STATE, 128, 128, 64, 1)
VALUE_SIZES = (STATE, 64, 1)
LSTM_LAYERS = 2
LEAST_SHARE = 1e-2
"""Of the scale of costs: no even share of a task's cost is taken to be less, so that nothing is divided by 0."""

SHAPES: dict[str, tuple[int, ...]] = {
    "feature_mean": (FEATURES,),
    "feature_scale": (FEATURES,),
    "cost_scale": (1,),
    **layer_shapes("encoder", ENCODER_SIZES),
    **layer_shapes("cost", COST_SIZES),
    **layer_shapes("share", SHARE_SIZES),
    **layer_shapes("device", DEVICE_SIZES),
    **layer_shapes("policy", POLICY_SIZES),
    **layer_shapes("value", VALUE_SIZES),
    **{
        f"lstm.{name}_l{layer}": shape
        for layer in range(LSTM_LAYERS)
        for name, shape in {
            "weight_ih": (4 * STATE, STATE),
            "weight_hh": (4 * STATE, STATE),
            "bias_ih": (4 * STATE,),
            "bias_hh": (4 * STATE,),
        }.items()
    },
}
"""Names and shapes of a policy file's arrays."""


class Decoder(NamedTuple):
    """What the compiled greedy reads; weights are stored `(in, out)`, rows of inputs next to each other.

    Attributes:
        cost_0: `(32, 64)` first layer of the cost head.
        cost_0_bias: `(64,)`.
        cost_1: `(64,)` second layer of the cost head.
        cost_1_bias: its bias.
        share: `(2, 32)` weight and bias of the placed share's layer.
        device: `(3, 32)` weights of predicted cost and memory, and the bias, of the device's layer.
        lstm: `(2, 128, 256)` weights of input and hidden state of both layers, gates input, forget, cell, output.
        lstm_bias: `(2, 256)`.
        on_state: `(64, 128)` first layer of the policy, on the state.
        on_device: `(64, 128)` the same, on the device.
        on_both: `(64, 128)` the same, on state × device.
        bias_0: `(128,)`.
        layer_1: `(128, 128)`.
        bias_1: `(128,)`.
        layer_2: `(128, 64)`.
        bias_2: `(64,)`.
        layer_3: `(64,)`.
    """

    cost_0: Floats
    cost_0_bias: Floats
    cost_1: Floats
    cost_1_bias: float
    share: Floats
    device: Floats
    lstm: Floats
    lstm_bias: Floats
    on_state: Floats
    on_device: Floats
    on_both: Floats
    bias_0: Floats
    layer_1: Floats
    bias_1: Floats
    layer_2: Floats
    bias_2: Floats
    layer_3: Floats


class AutoShardWeights:
    """The networks of a saved policy, in double precision.

    Args:
        policy: the policy.

    Raises:
        InvalidInput: an array is missing, of another shape, or not finite.
    """

    def __init__(self, policy: SavedPolicy) -> None:
        try:
            check_weights(policy.weights, SHAPES)
        except InvalidInput as error:
            raise InvalidInput(
                f"the file is not a whole policy of 'autoshard' ({error}); learn it again with 'shardwright learn autoshard'"
            ) from None
        self._weights = {name: array.astype(np.float64) for name, array in policy.weights.items()}
        self._encoder: Layers = layers_of(policy.weights, "encoder", len(ENCODER_SIZES) - 1)
        self._cost: Layers = layers_of(policy.weights, "cost", len(COST_SIZES) - 1)

    def encode(self, features: Floats) -> Floats:
        """`(b, 32)` encodings of blocks from `(b, 21)` table features."""
        standardised = (features - self._weights["feature_mean"]) * self._weights["feature_scale"]
        return np.maximum(evaluate(self._encoder, standardised), 0.0)

    def relative_cost(self, sums: Floats) -> Floats:
        """`(...)` predicted forward + backward time from `(..., 32)` sums of encodings, in units of `cost_scale` ms."""
        return evaluate(self._cost, sums)[..., 0]

    def cost_ms(self, sums: Floats) -> Floats:
        """`(...)` predicted forward + backward ms from `(..., 32)` sums of encodings."""
        predicted: Floats = self.relative_cost(sums) * self._weights["cost_scale"]
        return predicted

    def decoder(self) -> Decoder:
        """The arrays of the compiled greedy."""
        w = self._weights
        state, device, both = np.split(w["policy.0.weight"].T, 3)
        layers = range(LSTM_LAYERS)
        arrays = {
            "cost_0": w["cost.0.weight"].T,
            "cost_0_bias": w["cost.0.bias"],
            "cost_1": w["cost.1.weight"][0],
            "share": np.vstack([w["share.0.weight"].T, w["share.0.bias"]]),
            "device": np.vstack([w["device.0.weight"].T, w["device.0.bias"]]),
            "lstm": np.stack([np.hstack([w[f"lstm.weight_{kind}_l{i}"] for kind in ("ih", "hh")]).T for i in layers]),
            "lstm_bias": np.stack([w[f"lstm.bias_ih_l{i}"] + w[f"lstm.bias_hh_l{i}"] for i in layers]),
            "on_state": state,
            "on_device": device,
            "on_both": both,
            "bias_0": w["policy.0.bias"],
            "layer_1": w["policy.1.weight"].T,
            "bias_1": w["policy.1.bias"],
            "layer_2": w["policy.2.weight"].T,
            "bias_2": w["policy.2.bias"],
            "layer_3": w["policy.3.weight"][0],
        }
        plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return Decoder(cost_1_bias=float(w["cost.1.bias"][0]), **plain)


Bools = npt.NDArray[np.bool_]

_TIE = 1e-9  # logits so near are equal: rounding must not decide between equal devices
_FORBIDDEN = -np.inf


class Setting(NamedTuple):
    """A task as the greedy reads it.

    Attributes:
        units: `(n, 32)` sums of the encodings of each unit's blocks.
        bytes: `(n,)` memory a unit takes.
        allowed: `(n, d)` where a unit may go.
        rivals: `(n, n)` units to be kept apart; `(0, 0)` where there are none.
        fixed: `(d, 32)` sums of the encodings of the settled shards.
        occupied: `(d,)` whether a device holds a settled shard.
        used: `(d,)` memory that settled shards take.
        memory: `(d,)` memory of each device.
        even: predicted cost of an even share of everything, in units of `cost_scale`.
    """

    units: Floats
    bytes: Ints
    allowed: Bools
    rivals: Bools
    fixed: Floats
    occupied: Bools
    used: Ints
    memory: Ints
    even: float


def decode(
    setting: Setting, weights: Decoder, order: Ints, noise: Floats | None = None, logits: Floats | None = None
) -> tuple[int, Ints]:
    """Place the units in `order`.

    Args:
        setting: the task.
        weights: the policy.
        order: `(n,)` units, first to place first.
        noise: `(n, d)` added to the logits of each unit.
        logits: `(n, d)` is filled with the logits of each unit, minus infinity where it may not go.

    Returns:
        The first unit for which no device is left, or -1, and the device of each unit `(n,)`.
    """
    count = len(setting.allowed)
    hidden, cell, used = np.zeros((2, 64)), np.zeros((2, 64)), setting.used.copy()
    sums, occupied = setting.fixed.copy(), setting.occupied.copy()
    assignment: Ints = np.full(count, -1, dtype=np.int64)
    holds = _described(setting, sums, occupied, used, weights)
    for step, unit in enumerate(order.tolist()):
        _advance(hidden, cell, setting.units[unit], step / count, weights)
        able = setting.allowed[unit] & (used + setting.bytes[unit] <= setting.memory)
        if setting.rivals.size:
            theirs = assignment[setting.rivals[unit]]
            able[theirs[theirs >= 0]] = False
        scores = np.where(able, _scores(hidden[1], holds, weights), _FORBIDDEN)
        if logits is not None:
            logits[unit] = scores
        if not able.any():
            return unit, assignment
        best = _best(scores if noise is None else scores + noise[unit], setting.memory - used)
        assignment[unit] = best
        used[best] += setting.bytes[unit]
        sums[best] += setting.units[unit]
        occupied[best] = True
        one = slice(best, best + 1)
        holds[one] = _described(setting, sums, occupied, used, weights, one)
    return -1, assignment


def _best(scores: Floats, room: Ints) -> int:
    """The device with the highest score; among equals the one with more memory left, so that ranks do not matter."""
    highest = scores.max()
    equal = scores >= highest - _TIE * (1 + abs(highest))
    return int(np.argmax(np.where(equal, room, np.iinfo(np.int64).min)))


def _described(
    setting: Setting, sums: Floats, occupied: Bools, used: Ints, weights: Decoder, of: slice = slice(None)
) -> Floats:
    """`(d, 64)` sums of encodings of some devices, and the code of their predicted cost and memory."""
    layer = np.maximum(sums[of] @ weights.cost_0 + weights.cost_0_bias, 0.0)
    cost = np.where(occupied[of], (layer @ weights.cost_1 + weights.cost_1_bias) / setting.even, 0.0)
    memory = used[of] / np.maximum(setting.memory[of], 1)
    code = np.stack([cost, memory, np.ones_like(cost)], axis=1) @ weights.device
    return np.hstack([sums[of], np.maximum(code, 0.0)])


def _advance(hidden: Floats, cell: Floats, unit: Floats, share: float, weights: Decoder) -> None:
    """One step of the LSTM, in place; `hidden[1]` becomes the state."""
    below = np.concatenate([unit, np.maximum(weights.share[0] * share + weights.share[1], 0.0)])
    for layer in range(2):
        gates = np.concatenate([below, hidden[layer]]) @ weights.lstm[layer] + weights.lstm_bias[layer]
        let_in, kept, new, shown = gates.reshape(4, 64)
        cell[layer] = _sigmoid(kept) * cell[layer] + _sigmoid(let_in) * np.tanh(new)
        below = hidden[layer] = _sigmoid(shown) * np.tanh(cell[layer])


def _scores(state: Floats, holds: Floats, weights: Decoder) -> Floats:
    """`(d,)` logits; the last bias is the same for all devices."""
    first = weights.on_device + weights.on_both * state[:, None]
    one = np.maximum(holds @ first + (weights.bias_0 + state @ weights.on_state), 0.0)
    two = np.maximum(one @ weights.layer_1 + weights.bias_1, 0.0)
    three = np.maximum(two @ weights.layer_2 + weights.bias_2, 0.0)
    found: Floats = three @ weights.layer_3
    return found


def _sigmoid(x: Floats) -> Floats:
    found: Floats = 1.0 / (1.0 + np.exp(-x))
    return found


TRIES = 64
"""Most orders tried for tasks whose memory is so tight that the policy's own order leaves a unit without a device."""


@dataclass(frozen=True)
class AutoShard:
    """The learned policy of [autoshard], see `weights`. No communication, no column splits.

    Attributes:
        policy: file of the policy; None for the one that is bundled for the task's device.
        name: name of the strategy.
    """

    policy: Path | None = None
    name: str = NAME

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated, if there is a policy."""
        if self._file(task) is None:
            return (
                f"no policy for device '{task.topology.device}' is bundled; learn one with 'shardwright learn {NAME}' and name it "
                "with --policy"
            )
        return why_not_counted(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place by the policy, whose own cost model decides; `cost_model` is not asked.

        Only where a unit finds no device are other orders and random draws tried, until one fits or the deadline has passed.

        Raises:
            InfeasibleTask: every try left a unit without a device, or there is no policy.
            InvalidInput: the policy file cannot be read.
        """
        arrays = PlacementArrays.of(task)
        file = self._file(task)
        if file is None:
            raise InfeasibleTask(f"strategy '{self.name}' cannot plan this task: {self.supports(task)}")
        with Place(str(file)).naming():
            weights = AutoShardWeights(load_policy(file, NAME))
        if not len(arrays):
            return Plan(task, arrays.units.fixed, self.name, seed)
        return arrays.plan(placed(arrays, weights, seed, deadline), self.name, seed)

    def _file(self, task: Task) -> Path | None:
        return self.policy or bundled_policy(NAME, task.topology.device)


def placed(arrays: PlacementArrays, weights: AutoShardWeights, seed: int, deadline: float | None) -> Ints:
    """`(n,)` device of each unit.

    Tries, until one fits: costliest unit first, as in the paper; units with the fewest possible devices first, among those the largest;
    then the same with draws of the policy in place of its best choice. A unit that found no device comes first in the next try.

    Raises:
        InfeasibleTask: none fits.
    """
    setting, order = _setting(arrays, weights)
    decoder = weights.decoder()
    unit, assignment = decode(setting, decoder, order)
    order = _hardest_first(arrays)
    rng = np.random.default_rng(seed)
    tries = 1
    while unit >= 0 and tries < TRIES and (deadline is None or time.monotonic() < deadline):
        if tries > 1:
            order = np.concatenate([[unit], order[order != unit]])
        noise = rng.gumbel(size=arrays.allowed.shape) if tries > 2 else None
        unit, assignment = decode(setting, decoder, order, noise)
        tries += 1
    if unit >= 0:
        raise _nowhere(arrays, unit, assignment, tries)
    return assignment


def _setting(arrays: PlacementArrays, weights: AutoShardWeights) -> tuple[Setting, Ints]:
    """The arrays of the greedy, and the units by predicted cost alone, largest first."""
    blocks = weights.encode(arrays.features)
    units = np.zeros((len(arrays), blocks.shape[1]))
    np.add.at(units, arrays.unit_of, blocks)
    fixed = arrays.fixed_on.T.astype(np.float64) @ weights.encode(arrays.fixed_features)
    total = units.sum(axis=0) + fixed.sum(axis=0)
    setting = Setting(
        units=units,
        bytes=arrays.bytes,
        allowed=arrays.allowed,
        rivals=arrays.rivals if arrays.rivals.any() else np.zeros((0, 0), dtype=bool),
        fixed=np.ascontiguousarray(fixed),
        occupied=np.asarray(arrays.fixed_on.any(axis=0)),
        used=arrays.used,
        memory=arrays.memory,
        even=max(LEAST_SHARE, float(weights.relative_cost(total / arrays.devices))),
    )
    return setting, np.argsort(-weights.relative_cost(units), kind="stable")


def _hardest_first(arrays: PlacementArrays) -> Ints:
    """`(n,)` units with the fewest devices that are allowed and large enough first, among those the largest."""
    choices = (arrays.allowed & (arrays.used + arrays.bytes[:, None] <= arrays.memory)).sum(axis=1)
    return np.lexsort((-arrays.bytes, choices))


def _nowhere(arrays: PlacementArrays, unit: int, assignment: Ints, tries: int) -> InfeasibleTask:
    """Names a unit for which no device was left in the last of the tries."""
    done = assignment >= 0
    used = arrays.used + np.bincount(assignment[done], arrays.bytes[done], arrays.devices).astype(np.int64)
    left = max(0, int((arrays.memory - used)[arrays.allowed[unit]].max()))
    return InfeasibleTask(
        f"no device is left for table '{', '.join(arrays.units.free[unit].tables)}', which needs {format_bytes(int(arrays.bytes[unit]))}: "
        f"in the last of {tries} tries the devices it may use had at most {format_bytes(left)} left, or held a table it is to be kept "
        "apart from; allow column_wise or row_wise for it, use more devices or memory, or plan with certified"
    )


@dataclass(frozen=True)
class AutoShardOptions:
    """Options of a training; the defaults not named here are those of the paper and its public code.

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
    """

    steps: int = 1_000_000
    unroll: int = 100
    batch: int = 8
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
        least = dict.fromkeys(("steps", "unroll", "batch", "lag", "buffer", "buffer_batch", "cost_updates"), 1)
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
        """Rounds of the training: episodes are played, then the learner makes `lag` steps."""
        return -(-self.learner_steps // self.lag)

    def plain(self) -> dict[str, int | float]:
        """The options as JSON has them."""
        return asdict(self)
