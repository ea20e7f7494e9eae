"""A sample store for tests of the command line."""

import numpy as np

from shardwright.cost.score import device_ms
from shardwright.measure.device_work import DeviceWork, Job, Visit
from shardwright.measure.store import SampleStore
from shardwright.sharding import Shard, shard_work
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

HARDWARE = {
    "device_kind": "cpu",
    "processor": "Test CPU",
    "cores": "2",
    "backend": "fbgemm",
    "torch": "2",
    "fbgemm": "1",
}


def write_store(folder, samples=60, hardware=HARDWARE):
    """A store of samples whose times are those of the simple cost model; every tenth is there twice."""
    rng = np.random.default_rng(0)
    task = task_of(30, 1)
    model = SimpleCostModel()
    with SampleStore(folder, hardware) as store:
        for sample in range(samples):
            works = [shard_work(task, Shard.whole(task.tables[i], 0)) for i in rng.integers(0, 30, rng.integers(1, 9))]
            work = DeviceWork(tuple(works), tuple([sample] * len(works)), "sgd")
            forward, backward = device_ms(model, works)
            for repeat in range(1 + (sample % 10 == 0)):
                visit = Visit(forward * (1 + 0.02 * repeat), backward * (1 + 0.02 * repeat), 2, 1.0, 1.0, 0.0)
                store.add(Job(work, "random", str(sample), 256 * (1 + sample % 2)), visit)
