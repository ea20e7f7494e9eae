"""Learning a compute model from measured samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from shardwright.cost.accuracy import Accuracy, accuracy, predict
from shardwright.cost.caches import cache_bytes
from shardwright.cost.dataset import Floats, Samples
from shardwright.cost.features import cached, features, scales
from shardwright.cost.model import ComputeModel, Head
from shardwright.cost.network import ComputeNetwork
from shardwright.errors import InvalidInput

FEWEST_SETS = 50
SHARES = (0.8, 0.1, 0.1)  # training, validation, test, as in NeuroShard


@dataclass(frozen=True)
class TrainingOptions:
    """How to train.

    Attributes:
        head: "convex" or "mlp".
        epochs: most passes over the training sets.
        patience: stop when the validation error has not fallen for this many epochs.
        batch: sets per update.
        learning_rate: of Adam at the start; falls to 0 along a cosine.
        seed: of the split, the initial weights and the order of the batches.
    """

    head: Head = "convex"
    epochs: int = 300
    patience: int = 60
    batch: int = 128
    learning_rate: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.head not in ("mlp", "convex"):
            raise InvalidInput(f"head is {self.head!r}, must be 'mlp' or 'convex'")
        for name in ("epochs", "patience", "batch"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}, must be at least 1")


@dataclass(frozen=True)
class Trained:
    """A trained model and what it does on the test sets.

    Attributes:
        model: the weights of the best validation epoch.
        accuracy: errors on the test sets.
        epochs: passes made.
    """

    model: ComputeModel
    accuracy: Accuracy
    epochs: int


def split(samples: Samples, seed: int) -> tuple[Samples, Samples, Samples]:
    """Training, validation and test sets; the two measurements of a set stay together."""
    ids = np.random.default_rng(seed).permutation(np.unique(samples.sample))
    cuts = np.cumsum([round(share * len(ids)) for share in SHARES[:-1]])
    train, valid, test = (samples.select(np.isin(samples.sample, part)) for part in np.split(ids, cuts))
    return train, valid, test


def train(
    samples: Samples,
    options: TrainingOptions | None = None,
    metadata: dict[str, str] | None = None,
    progress: Callable[[int, float], None] | None = None,
    caches: tuple[int, int] | None = None,
) -> Trained:
    """Train a compute model on relative error.

    Args:
        samples: measured sets, of one machine and one optimizer.
        options: how to train.
        metadata: written into the model: device, hardware, optimizer.
        progress: called after every epoch with its number and the best validation error so far.
        caches: bytes of the L2 and of the last-level cache of the machine that measured; by default those of this machine.

    Raises:
        InvalidInput: there are fewer than 50 sets.
    """
    options = options or TrainingOptions()
    if len(samples) < FEWEST_SETS:
        raise InvalidInput(
            f"{len(samples)} samples are too few to train on; collect at least {FEWEST_SETS}, better 8,000"
        )
    parts = split(samples, options.seed)
    raw = features(parts[0].works)
    constants = {
        "feature_mean": raw.mean(axis=0),
        "feature_std": np.maximum(raw.std(axis=0), 1e-3),
        "feature_low": raw.min(axis=0),
        "feature_high": raw.max(axis=0),
        "scale": _first_estimate(parts[0]),
        "caches": np.array(caches or cache_bytes(), dtype=np.float64),
    }
    batches = [_Tensors(part, constants) for part in parts[:2]]
    network, epochs = _fit(batches[0], batches[1], options, progress)
    model = network.export(constants, metadata or {})
    return Trained(model, accuracy(partial(predict, model), parts[2], samples), epochs)


class _Tensors:
    """Samples as tensors: features, estimates, distinct bytes and calls of all m shards, `(n, 2)` times of the sets.

    The calls of a set are numbered one after another, so that those of some sets can be numbered anew.
    """

    def __init__(self, samples: Samples, constants: dict[str, Floats]) -> None:
        x_mf = np.clip(features(samples.works), constants["feature_low"], constants["feature_high"])
        x_mf = (x_mf - constants["feature_mean"]) / constants["feature_std"]
        self._x_mf = torch.tensor(x_mf, dtype=torch.float32)
        self._estimate_m = torch.tensor(scales(samples.works) @ constants["scale"], dtype=torch.float32)
        self._cached_m2 = torch.tensor(cached(samples.works, constants["caches"]), dtype=torch.float32)
        call_m, set_c = samples.calls
        self._call_m, self._calls_n = torch.tensor(call_m), torch.tensor(np.bincount(set_c, minlength=len(samples)))
        self._first_call_n = self._calls_n.cumsum(0) - self._calls_n
        self._starts_n, self._counts_n = torch.tensor(samples.starts[:-1]), torch.tensor(samples.shard_counts)
        self._times_n2 = torch.tensor(samples.times, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self._times_n2)

    def loss(self, network: ComputeNetwork, chosen_b: Tensor) -> Tensor:
        """Loss on `(b,)` sets: sets differ much in size, so their shards are laid end to end rather than padded."""
        count_b = self._counts_n[chosen_b]
        set_m = torch.repeat_interleave(count_b)
        first_b = self._starts_n[chosen_b] - (count_b.cumsum(0) - count_b)
        shard_m = torch.arange(len(set_m)) + first_b[set_m]
        calls_b = self._calls_n[chosen_b]
        call_m = self._call_m[shard_m] + (calls_b.cumsum(0) - calls_b - self._first_call_n[chosen_b])[set_m]
        times_b2 = network(
            self._x_mf[shard_m],
            self._estimate_m[shard_m],
            self._cached_m2[shard_m],
            call_m,
            torch.repeat_interleave(calls_b),
        )
        return _loss(times_b2, self._times_n2[chosen_b])


def _first_estimate(samples: Samples) -> Floats:
    """`(len(SCALES),)` non-negative rates that, over the sums of sizes, come closest to the measured time in relative error."""
    from scipy.optimize import nnls

    total = samples.times.sum(axis=1)
    sums = np.add.reduceat(scales(samples.works), samples.starts[:-1], axis=0) / total[:, None]
    unit = np.maximum(sums.max(axis=0), 1e-30)
    rates: Floats = nnls(sums / unit, np.ones(len(total)))[0] / unit
    return rates


def _loss(predicted_b2: Tensor, times_b2: Tensor) -> Tensor:
    """Mean relative error of forward, backward and, counted double, their sum."""
    parts = ((predicted_b2 - times_b2).abs() / times_b2).mean()
    total_b = times_b2.sum(dim=1)
    whole = ((predicted_b2.sum(dim=1) - total_b).abs() / total_b).mean()
    return (parts + 2 * whole) / 3


def _fit(
    data: _Tensors, valid: _Tensors, options: TrainingOptions, progress: Callable[[int, float], None] | None
) -> tuple[ComputeNetwork, int]:
    generator = torch.Generator().manual_seed(options.seed)
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        network = ComputeNetwork(options.head)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    average = copy.deepcopy(network)  # running average of the weights: steadier than the last step's
    best, best_error, best_epoch, epoch = copy.deepcopy(network), float("inf"), 0, 0
    for epoch in range(1, options.epochs + 1):
        for batch in torch.randperm(len(data), generator=generator).split(options.batch):
            optimizer.zero_grad()
            data.loss(network, batch).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            network.project()
            _move_towards(average, network, 0.02)
        scheduler.step()
        with torch.no_grad():
            error = float(valid.loss(average, torch.arange(len(valid))))
        if error < best_error:
            best, best_error, best_epoch = copy.deepcopy(average), error, epoch
        if progress is not None:
            progress(epoch, best_error)
        if epoch - best_epoch >= options.patience:
            break
    return best, epoch


@torch.no_grad()
def _move_towards(average: ComputeNetwork, network: ComputeNetwork, share: float) -> None:
    for kept, new in zip(average.parameters(), network.parameters(), strict=True):
        kept.lerp_(new, share)
