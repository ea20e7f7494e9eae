import numpy as np
import pytest

from shardwright.cost.features import WorkArrays
from shardwright.cost.score import device_ms
from shardwright.modelling.dataset import Samples
from shardwright.sharding import shard_work
from shardwright.sharding.shard import Shard
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of


def make_samples(sets: int, seed: int = 0, noise: float = 0.0) -> Samples:
    """Sets of 1 to 10 varied tables, timed by the simple cost model; the first sets are measured twice."""
    rng = np.random.default_rng(seed)
    task = task_of(60, 1)
    works = [shard_work(task, Shard.whole(table, 0)) for table in task.tables]
    chosen = [rng.integers(0, len(works), rng.integers(1, 11)) for _ in range(sets)]
    chosen += chosen[: sets // 20]
    starts = np.concatenate([[0], np.cumsum([len(c) for c in chosen])])
    flat = [works[i] for c in chosen for i in c]
    model = SimpleCostModel()
    times = np.array([device_ms(model, [works[i] for i in c]) for c in chosen]) * np.exp(
        noise * rng.standard_normal((len(chosen), 2))
    )
    ids = np.concatenate([np.arange(sets), np.arange(sets // 20)])
    repeat = np.concatenate([np.zeros(sets, int), np.ones(sets // 20, int)])
    return Samples(ids, repeat, starts, WorkArrays.of(flat), times)


@pytest.fixture(scope="session")
def samples():
    return make_samples(400, noise=0.02)


@pytest.fixture(scope="session")
def trained_by_head(samples):
    from shardwright.modelling.training import TrainingOptions, train

    metadata = {"device": "cpu", "hardware": "test"}
    return {
        head: train(samples, TrainingOptions(head=head, epochs=40, patience=40), metadata) for head in ("convex", "mlp")
    }


@pytest.fixture(scope="session", params=["convex", "mlp"])
def trained(request, trained_by_head):
    return trained_by_head[request.param]


@pytest.fixture(scope="session")
def trained_convex(trained_by_head):
    return trained_by_head["convex"]
