"""Training NeuroShard's communication networks on measured all-to-alls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shardwright.cost.links.dataset import ALL_TO_ALL, Collectives, split
from shardwright.cost.links.errors import PassErrors, errors_of, repeat_error
from shardwright.cost.links.fit import BACKWARD, FORWARD
from shardwright.cost.neuroshard.communication import CommunicationNetworks, megabytes
from shardwright.cost.neuroshard.layers import Weights
from shardwright.cost.neuroshard.network import CommunicationNetwork, exported
from shardwright.cost.neuroshard.training import NeuroShardOptions, Progress, TrainingData, fit
from shardwright.cost.pricing import Floats
from shardwright.errors import InvalidInput

FEWEST_COLLECTIVES = 50
_LEAST_STD = 1e-6
_PASSES = {"forward": FORWARD, "backward": BACKWARD}


@dataclass(frozen=True)
class TrainedCommunication:
    """Communication networks and what they do on the test collectives.

    Attributes:
        networks: for every number of devices that was measured.
        errors: by label of the collectives, as in "4 devices", and by pass: "all_to_all_forward", "all_to_all_backward".
    """

    networks: CommunicationNetworks
    errors: dict[str, dict[str, PassErrors]]


def train_communication(
    parts: Sequence[Collectives], options: NeuroShardOptions, progress: Progress | None = None
) -> TrainedCommunication:
    """Train a forward and a backward network for each number of devices.

    Args:
        parts: measured collectives, one entry for each number of devices; kinds other than all_to_all are left out.
        options: how to train; the split is that of `shardwright.cost.links.split` with the same seed.
        progress: called after every epoch of every network.

    Raises:
        InvalidInput: a number of devices comes with several numbers of hosts, or with fewer than 50 all-to-alls.
    """
    found = [part for part in (p.of_kind(ALL_TO_ALL) for p in parts) if len(part)]
    _check(found)
    weights: Weights = {}
    for part in found:
        for name in _PASSES:
            weights |= _train(part, name, options, progress)
    sizes, counts = np.unique(np.concatenate([part.batch_size for part in found]), return_counts=True)
    devices = tuple(part.devices for part in found)
    networks = CommunicationNetworks(weights, devices, int(sizes[counts.argmax()]))
    return TrainedCommunication(networks, {part.label: _errors(networks, part, options.seed) for part in found})


def predict_passes(networks: CommunicationNetworks, part: Collectives) -> dict[str, Floats]:
    """`(n, D)` predicted ms of the forward and the backward pass of n all-to-alls."""
    result = {name: np.zeros_like(part.dims) for name in _PASSES}
    for size in np.unique(part.batch_size):
        rows = part.batch_size == size
        result["forward"][rows] = networks.forward_ms(part.dims[rows], part.delays[rows], int(size))
        result["backward"][rows] = networks.backward_ms(part.dims[rows], int(size))
    return result


def _check(parts: Sequence[Collectives]) -> None:
    if not parts:
        raise InvalidInput(
            "the sample stores hold no all_to_all; collect some first: shardwright collect --collectives"
        )
    devices = [part.devices for part in parts]
    for part in parts:
        if devices.count(part.devices) > 1:
            raise InvalidInput(
                f"all-to-alls of {part.devices} devices were measured on several numbers of hosts; NeuroShard's networks do not know of "
                "hosts: train on samples of one arrangement"
            )
        if len(part) < FEWEST_COLLECTIVES:
            raise InvalidInput(
                f"{len(part)} all-to-alls of {part.devices} devices are too few to train on; collect at least {FEWEST_COLLECTIVES}, "
                "better thousands"
            )


def _train(part: Collectives, name: str, options: NeuroShardOptions, progress: Progress | None) -> Weights:
    """Arrays of one network."""
    train, valid, _ = split(part, options.seed)
    raw = _inputs(train, name)
    mean, std = raw.mean(axis=0), np.maximum(raw.std(axis=0), _LEAST_STD)
    data, checked = (
        TrainingData(
            (torch.tensor((_inputs(half, name) - mean) / std, dtype=torch.float32),),
            torch.tensor(getattr(half, name), dtype=torch.float32),
        )
        for half in (train, valid)
    )
    network = fit(lambda: CommunicationNetwork(len(mean), part.devices), data, checked, options, progress)
    prefix = f"communication.{part.devices}.{name}."
    constants = {f"{prefix}mean": mean.astype(np.float32), f"{prefix}std": std.astype(np.float32)}
    return exported(network, prefix) | constants


def _inputs(part: Collectives, name: str) -> Floats:
    """`(n, 2 D)` or, of the backward pass, `(n, D)`: MB of values, and ms of delay from the first to start."""
    sizes = megabytes(part.dims, part.batch_size[:, None])
    if name == "backward":
        return sizes
    return np.hstack([sizes, part.delays - part.delays.min(axis=1, keepdims=True)])


def _errors(networks: CommunicationNetworks, part: Collectives, seed: int) -> dict[str, PassErrors]:
    """Errors on the first measurements of the test collectives."""
    test = split(part, seed)[2]
    first = test.select(test.repeat == 0)
    predicted = predict_passes(networks, first)
    return {
        fit_name: errors_of(predicted[name].ravel(), getattr(first, name).ravel(), repeat_error([part], fit_name))
        for name, fit_name in _PASSES.items()
    }
