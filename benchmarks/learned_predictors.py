"""Predictions of cost networks for placements, and the placements to predict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardwright.cost import CostModel
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.autoshard.policy import AutoShardWeights
from shardwright.learned.policy_files import load_policy
from shardwright.learned.worlds import (
    BACKWARD,
    BACKWARD_COMMUNICATION,
    FORWARD,
    Placed,
    compute_ms,
    embedding_cost_ms,
    step_ms,
)
from shardwright.search.baselines import HEURISTICS
from shardwright.task import Task

Floats = npt.NDArray[np.float64]
Outputs = dict[str, Floats]
"""`(d,)` ms of each output by device, or `(1,)` if the output belongs to the whole placement."""

Predictor = Callable[[PlacementArrays, npt.NDArray[np.int64]], Outputs]

OUTPUTS = (
    "forward", "backward", "backward communication", "forward + backward", "overall: step", "overall: embedding cost",
)  # fmt: skip


def true_outputs(phases: Floats) -> Outputs:
    """Return the outputs for `(d, 4)` phases of a world."""
    values = (
        phases[:, FORWARD], phases[:, BACKWARD], phases[:, BACKWARD_COMMUNICATION], compute_ms(phases), np.array([step_ms(phases)]),
        np.array([embedding_cost_ms(phases)]),
    )  # fmt: skip
    return dict(zip(OUTPUTS, values, strict=True))


def dreamshard_predictor(path: Path | None) -> Predictor:
    """Return the cost network of a DreamShard policy."""
    import torch

    from shardwright.learned.dreamshard.mdp import encode
    from shardwright.learned.dreamshard.network import DreamShardNetwork
    from shardwright.learned.environment import PlacementBatch

    policy = load_policy(_file(path, "dreamshard"), "dreamshard")
    network = DreamShardNetwork.of(policy)
    overall = OUTPUTS[4] if network.objective == "step" else OUTPUTS[5]

    @torch.no_grad()
    def predict(arrays: PlacementArrays, assignment: npt.NDArray[np.int64]) -> Outputs:
        sums = encode(network, PlacementBatch.of([arrays])).sums(torch.from_numpy(assignment)[None])
        heads = network.cost.device_costs(network.cost.hidden(sums))[0].double().numpy()
        total = network.cost.overall_cost(sums).double().numpy()
        return {OUTPUTS[0]: heads[:, 0], OUTPUTS[1]: heads[:, 1], OUTPUTS[2]: heads[:, 2], overall: total}

    return predict


def autoshard_predictor(path: Path | None) -> Predictor:
    """Return the cost model of an AutoShard policy."""
    weights = AutoShardWeights(load_policy(_file(path, "autoshard"), "autoshard"))

    def predict(arrays: PlacementArrays, assignment: npt.NDArray[np.int64]) -> Outputs:
        sums = arrays.fixed_on.T.astype(np.float64) @ weights.encode(arrays.fixed_features)
        np.add.at(sums, assignment[arrays.unit_of], weights.encode(arrays.features))
        return {OUTPUTS[3]: weights.cost_ms(sums)}

    return predict


def random_placement(arrays: PlacementArrays, rng: np.random.Generator) -> npt.NDArray[np.int64] | None:
    """Place units on random devices, some devices much likelier than others; None if a unit finds no room."""
    chances = rng.dirichlet(np.ones(arrays.devices))
    used, assignment = arrays.used.copy(), np.zeros(len(arrays), dtype=np.int64)
    for unit in np.argsort(-arrays.bytes, kind="stable"):
        free = arrays.allowed[unit] & (used + arrays.bytes[unit] <= arrays.memory)
        if not free.any():
            return None
        share = np.where(free, chances + 1e-9, 0.0)
        assignment[unit] = rng.choice(arrays.devices, p=share / share.sum())
        used[assignment[unit]] += arrays.bytes[unit]
    return assignment


def sorted_placement(task: Task, arrays: PlacementArrays, model: CostModel) -> npt.NDArray[np.int64]:
    """Return where `size_lookup` puts whole tables."""
    plan = HEURISTICS[3].search(task, model, seed=0, deadline=None)
    device = {shard.table: shard.devices[0] for shard in plan.shards}
    return np.array([device[unit.tables[0]] for unit in arrays.units.free])


def held(placed: Placed) -> npt.NDArray[np.bool_]:
    """`(d,)` whether each device holds something."""
    arrays, assignment = placed
    return np.asarray((np.bincount(assignment, minlength=arrays.devices) > 0) | arrays.fixed_on.any(axis=0))


def _file(path: Path | None, strategy: str) -> Path:
    if path is None:
        raise SystemExit(
            f"the bundled policy of {strategy} has no cost network; name one learned with preset=published, with --{strategy}"
        )
    return path
