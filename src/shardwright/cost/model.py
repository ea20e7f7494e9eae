"""Cost models as plain arrays: how shards become the kernel time of a device, in a form that searches can use.

To predict a kernel time, encode each shard, SUM the encodings of each fused call, price the sums, and add the calls of a device.

    latent of a shard = first estimate of its time × g(features),    g: two layers, 32 numbers (as wide as in the papers)
    time of a call    = head(sum of its shards' latents and bytes)   forward and backward; bytes: see below
    time of a device  = sum over its calls                           an absent call costs nothing

The sum lets one model serve any number of shards (AutoShard, DreamShard, NeuroShard). The first estimate as a factor keeps the relative
error even over the three decades that times span. Features outside the range of the training sets are clipped to it: there the factor g
stays constant, and only the first estimate extrapolates. With the `convex` head the time is a convex function of the sums, and the lower
bound relies on that. Latents and weights are not negative, so a search cannot exploit model error by adding shards. Two
columns beside the latents are not learned: the bytes of the distinct rows, in units of the L2 and of the last-level cache of the measured
machine. Only their sum over the call shows whether rows come from a cache.

A model of a GPU has `wide` weights for the `PARTS` of the kernels' time, such as runs of lookups of one row. Each part takes time in
proportion. In addition, a fused call works on each lookup as if its table were as wide as the widest table of the call: for each of the
`WIDTHS`, a call that has a wider table pays more for all of its parts. This surcharge is not convex, since the first wide table raises the
price of all others at once. But it only adds time, so a bound may ignore it, or count the devices that pay it (`search.holders`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Bools, Floats
from shardwright.cost.features import (
    CACHES,
    FEATURES,
    PARTS,
    SCALES,
    WIDTHS,
    WorkArrays,
    cached,
    features,
    parts,
    scales,
    wider,
)
from shardwright.errors import InvalidInput
from shardwright.sharding.work import ShardWork
from shardwright.tensor_files import check_weights

if TYPE_CHECKING:
    from shardwright.cost.neuroshard.model import CommunicationNetworks


class PricingHead(NamedTuple):
    """The last layer of a cost model: it prices sums of vectors; see `Pricing`, and `PricingHead` in `native/pricing.hpp`."""

    mix: Floats
    gates: int
    base: Floats
    once: Floats


@dataclass(frozen=True, eq=False)
class Pricing:
    """Prices a fused call, and a device that makes one or several calls; forward and backward apart.

        call = max(0, mix · relu(hidden · sum + hidden_bias) + linear · sum + bias)       sum: of the encodings of its shards
        device = Σ of its calls + once                                                    0 for a device without a shard

    With gates, the last `3 * gates` hidden units are not mixed. Each gate has three: the number of shards that open it, and the forward and
    the backward ms that an open gate adds to the call.

    Attributes:
        hidden: `(h, latent)`; with h = 0 the time is linear.
        hidden_bias: `(h,)`.
        mix: `(2, h)`; the time is convex in the sum if no entry is negative.
        linear: `(2, latent)`.
        bias: `(2,)` ms.
        once: `(2,)` ms that a device with shards takes in addition to its calls; not negative.
        gates: number of gates.
    """

    hidden: Floats
    hidden_bias: Floats
    mix: Floats
    linear: Floats
    bias: Floats
    once: Floats = field(default_factory=lambda: np.zeros(2))
    gates: int = 0

    @property
    def convex(self) -> bool:
        """Whether the time without gates is convex in the sum."""
        return bool((self.mix >= 0).all())

    @property
    def matters(self) -> Bools:
        """`(h,)` whether a hidden unit has an effect on the time."""
        of_gates = np.arange(len(self.hidden)) >= len(self.hidden) - 3 * self.gates
        return self.mix.any(axis=0) | of_gates

    @property
    def base(self) -> Floats:
        """`(h + 2,)` the sum of an empty call."""
        return np.concatenate([self.hidden_bias, self.bias])

    @property
    def head(self) -> PricingHead:
        """The last layer, for the engine."""
        return PricingHead(np.ascontiguousarray(self.mix), self.gates, self.base, self.once)

    def scaled_hidden(self, scale: Floats) -> Floats:
        """`(h, latent)` hidden units with the times of the gates multiplied by `(2,)` scale."""
        factor = np.ones(len(self.hidden))
        first = len(factor) - 3 * self.gates
        factor[first + 1 :: 3], factor[first + 2 :: 3] = scale
        scaled: Floats = factor[:, None] * self.hidden
        return scaled

    def vectors(self, latents: Floats) -> Floats:
        """`(..., h + 2)` additions of `(..., latent)` encodings to the hidden units, and to the linear parts of both times."""
        return np.concatenate([latents @ self.hidden.T, latents @ self.linear.T], axis=-1)

    def times(self, vectors: Floats) -> Floats:
        """`(..., 2)` forward and backward ms of calls, from `(..., h + 2)` sums of vectors; never negative."""
        active = np.maximum(vectors[..., :-2] + self.hidden_bias, 0.0)
        times: Floats = np.maximum(active @ self.mix.T + vectors[..., -2:] + self.bias, 0.0)
        if self.gates:
            units = gate_units(vectors, self.gates)
            times = times + (units[..., 1:] * (units[..., :1] > OPEN)).sum(axis=-2)
        return times

    def price(self, sums: Floats) -> Floats:
        """`(..., 2)` forward and backward ms of calls, from `(..., latent)` sums; never negative."""
        return self.times(self.vectors(sums))

    def devices(self, sums: Floats, present: Bools) -> Floats:
        """`(..., 2)` forward and backward ms of devices.

        Args:
            sums: `(..., calls, latent)` sums of the encodings in each call.
            present: `(..., calls)` whether the device makes each call; an absent call costs nothing.
        """
        of_calls = np.where(present[..., None], self.price(sums), 0.0).sum(axis=-2)
        times: Floats = of_calls + present.any(axis=-1, keepdims=True) * self.once
        return times


def gate_units(vectors: Floats, gates: int) -> Floats:
    """`(..., gates, 3)` of `(..., h + 2)` vectors: shards that open each gate, and the forward and backward ms that it adds if open."""
    units = vectors[..., vectors.shape[-1] - 2 - 3 * gates : -2]
    return units.reshape(*units.shape[:-1], gates, 3).copy()


Head: TypeAlias = Literal["mlp", "convex"]
HIDDEN, LATENT, HEAD_HIDDEN, OUTPUTS = 128, 32, 64, 2
HEAD_INPUTS = LATENT + len(CACHES)
OPEN = 0.5  # a gate is open from one shard on; sums of counts may be off by rounding

SHAPES: dict[str, tuple[int, ...]] = {
    "feature_mean": (len(FEATURES),),
    "feature_std": (len(FEATURES),),
    "feature_low": (len(FEATURES),),
    "feature_high": (len(FEATURES),),
    "scale": (len(SCALES),),
    "caches": (len(CACHES),),
    "encoder.0.weight": (HIDDEN, len(FEATURES)),
    "encoder.0.bias": (HIDDEN,),
    "encoder.1.weight": (LATENT, HIDDEN),
    "encoder.1.bias": (LATENT,),
    "head.0.weight": (HEAD_HIDDEN, HEAD_INPUTS),
    "head.0.bias": (HEAD_HIDDEN,),
    "head.1.weight": (OUTPUTS, HEAD_HIDDEN),
    "head.1.bias": (OUTPUTS,),
    "head.skip": (OUTPUTS, HEAD_INPUTS),
}
MONOTONE = ("head.0.weight", "head.1.weight", "head.skip")
"""Weights of a convex head that must not be negative, so that a device never becomes faster by another shard."""
WIDE = "wide"
"""Weights of a GPU's parts, `(2, 4, len(PARTS))`: forward and backward ms of each, and the ms that a table wider than each of `WIDTHS`
adds."""
WIDE_SHAPE = (OUTPUTS, 1 + len(WIDTHS), len(PARTS))


def shapes_of(names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's weights, given the names of those that it has: only models of GPUs have `WIDE`."""
    return SHAPES | ({WIDE: WIDE_SHAPE} if WIDE in names else {})


class CostModel(ABC):
    """Predicts the kernel times of any set of shards, through sums of encodings.

    A model implements `name`, `pricing` and `encode_arrays`. All other members have defaults.

    Attributes:
        metadata: origin of the model, such as hardware, optimizer and accuracy; empty if it is unknown.
    """

    metadata: Mapping[str, str] = MappingProxyType({})

    @property
    @abstractmethod
    def name(self) -> str:
        """Name with the model's kind and origin; written into plans."""

    @property
    @abstractmethod
    def pricing(self) -> Pricing:
        """Turns the sums of a device's calls into times."""

    @abstractmethod
    def encode_arrays(self, works: WorkArrays) -> Floats:
        """`(n, latent)` encodings of n shards, given as arrays."""

    def encode(self, works: Sequence[ShardWork]) -> Floats:
        """`(n, latent)` encodings of n shards."""
        return self.encode_arrays(WorkArrays.of(works))

    @property
    def cut_error(self) -> float:
        """Error of the predicted cost of a cut, as a share of the table's time; searches make no cut that gains less."""
        return 0.0

    @property
    def narrowest(self) -> int | None:
        """Fewest columns of a block that searches cut, unless nothing else fits; None for no limit."""
        return None

    @property
    def superadditive(self) -> CostModel | None:
        """A model that never predicts more than this one, and in which cutting or replicating a table never lowers its cost.

        Bounds of tiers need it.
        """
        return None

    @property
    def communication(self) -> CommunicationNetworks | None:
        """NeuroShard's networks of the all-to-alls; None if the model has none."""
        return None


class AddedModel(CostModel):
    """A cost model that adds forward and backward ms to each shard, in two columns appended to a base model's encodings."""

    base: CostModel

    @abstractmethod
    def added(self, works: WorkArrays, latents: Floats) -> Floats:
        """`(n, 2)` forward and backward ms to add to n shards, whose `(n, latent)` encodings by the base model are given."""

    def encode_arrays(self, works: WorkArrays) -> Floats:
        """`(n, latent + 2)` encodings of n shards."""
        latents = self.base.encode_arrays(works)
        return np.hstack([latents, self.added(works, latents)])

    def priced(self, scale: Floats, once: Floats) -> Pricing:
        """The base model's pricing times `(2,)` scale, plus the added ms, plus `(2,)` ms once for each device with shards."""
        base = self.base.pricing
        return Pricing(
            np.hstack([base.scaled_hidden(scale), np.zeros((base.hidden.shape[0], 2))]),
            base.hidden_bias,
            scale[:, None] * base.mix,
            np.hstack([scale[:, None] * base.linear, np.eye(2)]),
            scale * base.bias,
            scale * base.once + once,
            base.gates,
        )


class TaskModel(AddedModel):
    """A base model's kernels plus the times that a task adds to them; searches treat blocks as with the base model."""

    @property
    def name(self) -> str:
        """The name of the base model."""
        return self.base.name

    @property
    def cut_error(self) -> float:
        """The `cut_error` of the base model."""
        return self.base.cut_error

    @property
    def narrowest(self) -> int | None:
        """Fewest columns of a block that searches cut, from the base model; None if it has no such limit."""
        return self.base.narrowest


@dataclass(frozen=True, eq=False)
class ComputeModel(CostModel):
    """The learned compute model, evaluated with numpy.

    Attributes:
        head: "convex" or "mlp".
        weights: arrays with the names and shapes of `SHAPES`, and `WIDE` for a GPU; `caches` are in bytes. `WIDE`, and `MONOTONE` of a
            convex head, are not negative.
        metadata: origin of the model: hardware, optimizer, samples, accuracy.
    """

    head: Head
    weights: dict[str, npt.NDArray[np.float32]]
    metadata: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.head not in ("mlp", "convex"):
            raise InvalidInput(f"cost model: head is {self.head!r}, must be 'mlp' or 'convex'")
        check_weights(self.weights, shapes_of(self.weights))
        if (self.weights["caches"] <= 0).any():
            raise InvalidInput("cost model: caches must be greater than 0 bytes; train the model again")
        for name in (WIDE, *(MONOTONE if self.head == "convex" else ())):
            if name in self.weights and (self.weights[name] < 0).any():
                raise InvalidInput(f"cost model: {name} must not be negative; train the model again")

    @property
    def name(self) -> str:
        """Name in the metadata, else device and head, as in "cpu/convex"."""
        return self.metadata.get("name", f"{self.metadata.get('device', 'unknown')}/{self.head}")

    def encode_arrays(self, works: WorkArrays) -> Floats:
        """`(n, 34)` encodings of n shards, for a GPU `(n, 45)`."""
        w = self.weights
        x = (np.clip(features(works), w["feature_low"], w["feature_high"]) - w["feature_mean"]) / w["feature_std"]
        hidden = np.maximum(x @ w["encoder.0.weight"].T.astype(np.float64) + w["encoder.0.bias"], 0.0)
        factor = np.logaddexp(0.0, hidden @ w["encoder.1.weight"].T.astype(np.float64) + w["encoder.1.bias"])
        latents = factor * (scales(works) @ w["scale"].astype(np.float64))[:, None]
        encoded = [latents, cached(works, w["caches"].astype(np.float64))]
        return np.hstack([*encoded, *self._parts(works)] if WIDE in w else encoded)

    def _parts(self, works: WorkArrays) -> tuple[Floats, Floats]:
        """`(n, 2)` ms that a shard's parts always take, and `(n, 9)` units of the gates; see `gate_units`."""
        weights, is_wider = self.weights[WIDE].astype(np.float64), wider(works)[..., None]
        each = np.einsum("nk,pgk->ngp", parts(works, float(self.weights["caches"][0])), weights)
        always = each[:, 0] + (is_wider * each[:, 1:]).sum(axis=1)
        return always, np.concatenate([is_wider, ~is_wider * each[:, 1:]], axis=2).reshape(len(each), -1)

    @cached_property
    def pricing(self) -> Pricing:
        """The head, in double precision."""
        w = {name: array.astype(np.float64) for name, array in self.weights.items()}
        hidden, bias, mix = w["head.0.weight"], w["head.0.bias"], w["head.1.weight"]
        if WIDE not in w:
            return Pricing(hidden, bias, mix, w["head.skip"], w["head.1.bias"])
        gates, (units, inputs) = 3 * len(WIDTHS), hidden.shape
        all_hidden = np.zeros((units + gates, inputs + OUTPUTS + gates))
        all_hidden[:units, :inputs], all_hidden[units:, -gates:] = hidden, np.eye(gates)
        return Pricing(
            all_hidden,
            np.concatenate([bias, np.zeros(gates)]),
            np.hstack([mix, np.zeros((OUTPUTS, gates))]),
            np.hstack([w["head.skip"], np.eye(OUTPUTS), np.zeros((OUTPUTS, gates))]),
            w["head.1.bias"],
            gates=len(WIDTHS),
        )
