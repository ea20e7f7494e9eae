"""Train a compute model on measured samples: the model as a torch module, its loss and its options.

Shape suffixes: b sets, c calls of all sets, m shards of all sets, f features, h inputs of the head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from shardwright.arrays import Floats
from shardwright.cost.features import FEATURES, cached, features, parts, scales, wider
from shardwright.cost.model import (
    HEAD_HIDDEN,
    HEAD_INPUTS,
    HIDDEN,
    LATENT,
    OUTPUTS,
    WIDE,
    WIDE_SHAPE,
    ComputeModel,
    Head,
)
from shardwright.errors import InvalidInput
from shardwright.hardware import cache_bytes
from shardwright.modelling.accuracy import Accuracy, accuracy, predict
from shardwright.modelling.dataset import Samples, pairs_of, rates_of, split
from shardwright.modelling.fitting import Fit, Progress
from shardwright.modelling.gpu_parts import Width, fitted_parts
from shardwright.options import Options, number, whole

_linear = partial(nn.Linear, dtype=torch.float64)
_REST = 0.1  # share of a GPU's time, by the first estimate, that is left to the network when training starts


class ComputeNetwork(nn.Module):
    """Encoder, sums and head with the shapes of `shardwright.cost.model`.

    Weights have double precision: in single precision, rounding differs by processor and changes the trained result by percents.
    """

    def __init__(self, head: Head, wide: Floats | None = None) -> None:
        super().__init__()
        self.head_kind = head
        self.encoder = nn.ModuleList([_linear(len(FEATURES), HIDDEN), _linear(HIDDEN, LATENT)])
        self.head = nn.ModuleList([_linear(HEAD_INPUTS, HEAD_HIDDEN), _linear(HEAD_HIDDEN, OUTPUTS)])
        self.skip = nn.Parameter(torch.full((OUTPUTS, HEAD_INPUTS), 1 / (OUTPUTS * LATENT), dtype=torch.float64))
        self.wide = None if wide is None else nn.Parameter(torch.tensor(wide, dtype=torch.float64))
        with torch.no_grad():
            # At the start a latent is the first estimate of its shard's time; the head gives half of it to each direction, ignoring caches.
            self._linear("encoder.1").weight.mul_(0.3)
            self._linear("encoder.1").bias.fill_(math.log(math.e - 1))
            self._linear("head.0").weight[:, LATENT:] = 0.0
            self._linear("head.0").weight.abs_()
            self._linear("head.1").weight.abs_().mul_(0.05)
            self._linear("head.1").bias.zero_()
            self.skip[:, LATENT:] = 0.0
            if wide is not None:
                self.skip.mul_(_REST)  # the parts of a GPU's time explain nearly all of it

    @classmethod
    def of(cls, model: ComputeModel) -> Self:
        """The network with a model's weights, ready for further training."""
        network = cls(model.head, model.weights[WIDE].astype(np.float64) if WIDE in model.weights else None)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(torch.from_numpy(model.weights[name.replace("skip", "head.skip")]))
        return network

    def forward(
        self,
        x_mf: Tensor,
        estimate_m: Tensor,
        cached_m2: Tensor,
        parts_mk: Tensor,
        wider_mw: Tensor,
        call_m: Tensor,
        set_c: Tensor,
    ) -> Tensor:
        """`(b, 2)` forward and backward ms of b sets.

        Args:
            x_mf: features of all shards.
            estimate_m: first estimates of the shards' times, ms.
            cached_m2: bytes of the shards' distinct rows, in units of the caches.
            parts_mk: `parts` of the shards.
            wider_mw: whether each shard is wider than each of `WIDTHS`, as 0 or 1.
            call_m: the call that each shard belongs to.
            set_c: the set that each call belongs to.
        """
        factor_mh = nn.functional.softplus(self._linear("encoder.1")(torch.relu(self._linear("encoder.0")(x_mf))))
        encoded_mh = torch.cat([factor_mh * estimate_m[:, None], cached_m2], dim=1)
        sums_ch = encoded_mh.new_zeros(len(set_c), HEAD_INPUTS).index_add(0, call_m, encoded_mh)
        hidden = torch.relu(self._linear("head.0")(sums_ch))
        last = self._linear("head.1")
        times_c2 = hidden @ last.weight.T + sums_ch @ self.skip.T + last.bias
        if self.wide is not None:
            parts_ck = parts_mk.new_zeros(len(set_c), parts_mk.shape[1]).index_add(0, call_m, parts_mk)
            open_cw = wider_mw.new_zeros(len(set_c), wider_mw.shape[1]).index_add(0, call_m, wider_mw) > 0
            paid_cg = nn.functional.pad(open_cw.to(parts_ck), (1, 0), value=1.0)
            times_c2 = times_c2 + torch.einsum("ck,cg,pgk->cp", parts_ck, paid_cg, self.wide)
        return times_c2.new_zeros(int(set_c.max()) + 1, OUTPUTS).index_add(0, set_c, times_c2)

    @torch.no_grad()
    def project(self) -> None:
        """Keep the weights of a convex head (see `MONOTONE`) and `WIDE` non-negative; called after every update."""
        if self.head_kind == "convex":
            for weight in (self._linear("head.0").weight, self._linear("head.1").weight, self.skip):
                weight.clamp_(min=0)
        if self.wide is not None:
            self.wide.clamp_(min=0)

    def export(self, constants: dict[str, Floats], metadata: dict[str, str]) -> ComputeModel:
        """The trained model for numpy; `constants` are the weights that are not trained."""
        weights = {
            name.replace("skip", "head.skip"): value.detach().numpy().astype(np.float32)
            for name, value in self.named_parameters()
        }
        return ComputeModel(self.head_kind, weights | {k: v.astype(np.float32) for k, v in constants.items()}, metadata)

    def _linear(self, name: str) -> nn.Linear:
        return cast(nn.Linear, self.get_submodule(name))


FEWEST_SETS = 50


@dataclass(frozen=True)
class TrainingOptions(Options):
    """Options of the training.

    Attributes:
        head: "convex" or "mlp".
        epochs: most passes over the training sets.
        patience: stop when the validation error has not fallen for this many epochs.
        batch: sets per update.
        learning_rate: initial learning rate of Adam; falls to 0 along a cosine.
        width: the width at which a call's kernels work: each table's "own", or that of the "widest" table, as on GPUs.
        seed: seed of the split, the initial weights and the order of the batches.
    """

    head: Head = "convex"
    epochs: int = whole(300)
    patience: int = whole(60)
    batch: int = whole(128)
    learning_rate: float = number(2e-3)
    width: Width = "own"
    seed: int = whole(0, least=0)

    def fit(self) -> Fit[ComputeNetwork]:
        """The training loop with these options."""
        return Fit(
            self.epochs, self.batch, self.learning_rate, self.seed, self.patience,
            cosine=True, most_norm=5.0, average=0.02, constrain=ComputeNetwork.project,
        )  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """A trained model and its errors on the test sets.

    Attributes:
        model: the model of the best validation epoch.
        accuracy: errors on the test sets.
        epochs: number of epochs run.
    """

    model: ComputeModel
    accuracy: Accuracy
    epochs: int


def check_enough(samples: Samples) -> None:
    """Raise InvalidInput if there are fewer than 50 sets."""
    if len(samples) < FEWEST_SETS:
        raise InvalidInput(
            f"{len(samples)} samples are too few to train on; collect at least {FEWEST_SETS}, better 8,000"
        )


def train(
    samples: Samples,
    options: TrainingOptions | None = None,
    metadata: dict[str, str] | None = None,
    progress: Progress | None = None,
    caches: tuple[int, int] | None = None,
) -> Trained:
    """Train a compute model on relative error.

    Args:
        samples: measured sets, of one machine and one optimizer.
        options: how to train.
        metadata: written into the model: device, hardware, optimizer.
        progress: called after every epoch with its number and the best validation error so far.
        caches: bytes of the L2 and of the last-level cache of the measured machine; by default those of this machine.

    Raises:
        InvalidInput: there are fewer than 50 sets.
    """
    options = options or TrainingOptions()
    check_enough(samples)
    train_sets, valid_sets, test_sets = map(samples.select, split(samples.sample, options.seed))
    constants = _constants(train_sets, caches)
    data, valid = (_Tensors(sets, constants) for sets in (train_sets, valid_sets))
    network, epochs = options.fit()(_new_network(options, train_sets, constants), data, valid, progress)
    model = network.export(constants, metadata or {})
    return Trained(model, accuracy(predict(model, test_sets), test_sets, samples), epochs)


def fitted(
    samples: Samples,
    options: TrainingOptions,
    caches: tuple[int, int] | None = None,
    start: ComputeModel | None = None,
) -> ComputeModel:
    """Train a model on all samples for all epochs, for sample stores too small to hold some out for stopping.

    Args:
        samples: measured sets, of one machine and one optimizer.
        options: how to train; `patience` has no effect.
        caches: bytes of the caches of the measured machine; by default those of this machine.
        start: a model to start from instead of random weights. Its first estimate and its scale of features are kept; the range of
            features grows to include the samples.
    """
    constants = _constants(samples, caches)
    if start is None:
        network = _new_network(options, samples, constants)
    else:
        network = ComputeNetwork.of(start)
        if options.width == "widest" and network.wide is None:
            network.wide = nn.Parameter(torch.zeros(WIDE_SHAPE, dtype=torch.float64))
        seen = constants
        constants = {name: start.weights[name].astype(np.float64) for name in seen} | {"caches": seen["caches"]}
        constants["feature_low"] = np.minimum(constants["feature_low"], seen["feature_low"])
        constants["feature_high"] = np.maximum(constants["feature_high"], seen["feature_high"])
    network, _ = options.fit()(network, _Tensors(samples, constants), None)
    return network.export(constants, {})


def _constants(samples: Samples, caches: tuple[int, int] | None) -> dict[str, Floats]:
    """The constants of a model: the weights that are not trained."""
    raw = features(samples.works)
    return {
        "feature_mean": raw.mean(axis=0),
        "feature_std": np.maximum(raw.std(axis=0), 1e-3),
        "feature_low": raw.min(axis=0),
        "feature_high": raw.max(axis=0),
        "scale": _first_estimate(samples),
        "caches": np.array(caches or cache_bytes(), dtype=np.float64),
    }


class _Tensors:
    """Samples as double-precision tensors: features, estimates, distinct bytes and calls of all m shards, `(n, 2)` times of the sets.

    The calls of a set have consecutive numbers, so that the calls of a batch of sets are easily renumbered.
    """

    def __init__(self, samples: Samples, constants: dict[str, Floats]) -> None:
        x_mf = np.clip(features(samples.works), constants["feature_low"], constants["feature_high"])
        x_mf = (x_mf - constants["feature_mean"]) / constants["feature_std"]
        self._x_mf = torch.tensor(x_mf, dtype=torch.float64)
        self._estimate_m = torch.tensor(scales(samples.works) @ constants["scale"], dtype=torch.float64)
        self._cached_m2 = torch.tensor(cached(samples.works, constants["caches"]), dtype=torch.float64)
        self._parts_mk = torch.tensor(parts(samples.works, constants["caches"][0]), dtype=torch.float64)
        self._wider_mw = torch.tensor(wider(samples.works), dtype=torch.float64)
        call_m, set_c = samples.calls
        self._call_m, self._calls_n = torch.tensor(call_m), torch.tensor(np.bincount(set_c, minlength=len(samples)))
        self._first_call_n = self._calls_n.cumsum(0) - self._calls_n
        self._starts_n, self._counts_n = torch.tensor(samples.starts[:-1]), torch.tensor(samples.shard_counts)
        self._times_n2 = torch.tensor(samples.times, dtype=torch.float64)
        pairs = pairs_of(list(samples.labels))
        self._variant_n, self._base_v = torch.tensor(pairs.variant), torch.tensor(pairs.base)
        of_group: dict[int, list[int]] = {}
        for place, group in enumerate(pairs.group.tolist()):
            of_group.setdefault(group, []).append(place)
        self._groups = list(of_group.values())

    def __len__(self) -> int:
        return len(self._times_n2)

    def batches(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """All sets once in random order, in batches of about `size`; the sets of a pair stay together."""
        batch: list[int] = []
        for group in torch.randperm(len(self._groups), generator=generator).tolist():
            batch += self._groups[group]
            if len(batch) >= size:
                yield torch.tensor(batch)
                batch = []
        if batch:
            yield torch.tensor(batch)

    def loss(self, network: ComputeNetwork, rows: Tensor) -> Tensor:
        """Loss on the sets `rows`, `(b,)`. Sets differ much in size, so their shards are laid end to end rather than padded."""
        chosen_b, count_b = rows, self._counts_n[rows]
        set_m = torch.repeat_interleave(count_b)
        first_b = self._starts_n[chosen_b] - (count_b.cumsum(0) - count_b)
        shard_m = torch.arange(len(set_m)) + first_b[set_m]
        calls_b = self._calls_n[chosen_b]
        call_m = self._call_m[shard_m] + (calls_b.cumsum(0) - calls_b - self._first_call_n[chosen_b])[set_m]
        times_b2 = network(
            self._x_mf[shard_m],
            self._estimate_m[shard_m],
            self._cached_m2[shard_m],
            self._parts_mk[shard_m],
            self._wider_mw[shard_m],
            call_m,
            torch.repeat_interleave(calls_b),
        )
        return _loss(times_b2, self._times_n2[chosen_b]) + self._pair_loss(times_b2, chosen_b)

    def _pair_loss(self, predicted_b2: Tensor, chosen_b: Tensor) -> Tensor:
        """Mean error of the time difference between a variant and its base variant, as a share of the base variant's time."""
        inside = self._variant_n[chosen_b] >= 0
        if not inside.any():
            return predicted_b2.new_zeros(())
        variant, variants = self._variant_n[chosen_b][inside], len(self._base_v)

        def total_v(times_b2: Tensor) -> Tensor:
            return times_b2.new_zeros(variants).index_add(0, variant, times_b2[inside].sum(dim=1))

        predicted_v, measured_v = total_v(predicted_b2), total_v(self._times_n2[chosen_b])
        compared = torch.unique(variant)
        compared = compared[self._base_v[compared] != compared]
        base = self._base_v[compared]
        more = (predicted_v[compared] - predicted_v[base]) - (measured_v[compared] - measured_v[base])
        return (more.abs() / measured_v[base]).sum() / max(len(compared), 1)


def _first_estimate(samples: Samples) -> Floats:
    """`(len(SCALES),)` non-negative rates: a fit of the measured times to the summed sizes, by relative error."""
    sums = np.add.reduceat(scales(samples.works), samples.starts[:-1], axis=0)
    return rates_of(sums, samples.times.sum(axis=1))


def _loss(predicted_b2: Tensor, times_b2: Tensor) -> Tensor:
    """Mean of the relative errors of forward and backward (weight 1/3) and of their sum (weight 2/3)."""
    parts = ((predicted_b2 - times_b2).abs() / times_b2).mean()
    total_b = times_b2.sum(dim=1)
    whole = ((predicted_b2.sum(dim=1) - total_b).abs() / total_b).mean()
    return (parts + 2 * whole) / 3


def _new_network(options: TrainingOptions, samples: Samples, constants: dict[str, Floats]) -> ComputeNetwork:
    wide = fitted_parts(samples, float(constants["caches"][0])) if options.width == "widest" else None
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        return ComputeNetwork(options.head, wide)
