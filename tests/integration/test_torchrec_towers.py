"""Towers on two hosts of two processes: TorchRec shards them on our plans, and they train as on one process."""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

HOSTS, PER_HOST, BATCH, RATE = 2, 2, 6, 0.1
WORLD = HOSTS * PER_HOST


class Interaction(nn.Module):
    """A dense layer over a tower's embeddings."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 8)

    def forward(self, embeddings):
        return self.layer(embeddings.values())


def model_and_sharders(kinds):
    """A tower, and a collection of two, whose tables may have some sharding types."""
    from torchrec.distributed.embedding_tower_sharding import EmbeddingTowerCollectionSharder, EmbeddingTowerSharder
    from torchrec.distributed.planner import ParameterConstraints
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    torch.manual_seed(0)

    def tower(name, count):
        tables = [
            EmbeddingBagConfig(
                name=f"{name}{i}", num_embeddings=64 + i, embedding_dim=16, feature_names=[f"f_{name}{i}"]
            )
            for i in range(count)
        ]
        return EmbeddingTower(EmbeddingBagCollection(tables=tables), Interaction(16 * count))

    model = nn.Module()
    model.one = tower("a", 3)
    model.many = EmbeddingTowerCollection([tower("b", 2), tower("c", 4)])
    tables = {name.split(".")[-2]: weights for name, weights in model.named_parameters() if "embedding_bags" in name}
    apply_optimizer_in_backward(torch.optim.SGD, tables.values(), {"lr": RATE})
    constraints = {name: ParameterConstraints(sharding_types=kinds, min_partition=4) for name in tables}
    return model, [EmbeddingTowerSharder(), EmbeddingTowerCollectionSharder()], constraints, list(tables)


def batch_of(names, rank):
    from torchrec import KeyedJaggedTensor

    generator = torch.Generator().manual_seed(rank)
    lengths = torch.randint(0, 4, (len(names) * BATCH,), generator=generator)
    values = torch.randint(0, 64, (int(lengths.sum()),), generator=generator)
    return KeyedJaggedTensor(keys=[f"f_{name}" for name in names], values=values, lengths=lengths)


def outputs(model, batch):
    return torch.cat([model.one(batch), model.many(batch)], dim=1)


@torch.no_grad()
def take_weights(sharded, whole):
    """Copy the weights of a whole model, for TorchRec draws those of sharded modules anew."""
    given = whole.state_dict()
    for name, weights in sharded.state_dict().items():
        if not hasattr(weights, "local_shards"):
            weights.copy_(given[name])
            continue
        for shard in weights.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(given[name][row : row + rows, column : column + columns])


def trained(kinds, rank):
    """Largest difference of the forward passes before and after a step from those of the whole model, and each tower's hosts."""
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner.types import Topology

    from shardwright.integrations.torchrec import ShardwrightPlanner

    topology = Topology(WORLD, "cpu", local_world_size=PER_HOST)
    model, sharders, constraints, names = model_and_sharders(kinds)
    planner = ShardwrightPlanner(topology, BATCH, stats=[], constraints=constraints)
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    whole, *_ = model_and_sharders(kinds)
    device = torch.device("cpu")
    sharded = DistributedModelParallel(model, device=device, plan=plan, sharders=sharders, init_parameters=False)
    take_weights(sharded, whole)
    batches = [batch_of(names, one) for one in range(WORLD)]
    differences = []
    for _ in range(2):
        expected = [outputs(whole, batch) for batch in batches]
        found = outputs(sharded.module, batches[rank])
        differences.append(float((found - expected[rank]).detach().abs().max()))
        found.sum().backward()
        (sum(each.sum() for each in expected) / WORLD).backward()
    hosts = {
        name: sorted({one // PER_HOST for one in part.ranks})
        for path in plan.plan.values()
        for name, part in path.items()
    }
    kinds_found = sorted({part.sharding_type for path in plan.plan.values() for part in path.values()})
    return {"differences": differences, "hosts": hosts, "kinds": kinds_found}


def run_interactions_on_cpus():
    """TorchRec names the CPU to the DDP module of an interaction, which takes numbers of GPUs only."""
    from torchrec.distributed import embedding_tower_sharding

    real = embedding_tower_sharding.DistributedDataParallel
    embedding_tower_sharding.DistributedDataParallel = lambda device_ids, **fields: real(**fields)


def in_group(rank, folder):
    os.environ |= {"LOCAL_WORLD_SIZE": str(PER_HOST), "LOCAL_RANK": str(rank % PER_HOST)}
    torch.set_num_threads(1)
    run_interactions_on_cpus()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    answers = [trained(kinds, rank) for kinds in (None, ["table_row_wise"], ["table_column_wise"])]
    dist.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(answers))
    os._exit(0)  # threads of the libraries that still run when an interpreter ends abort it now and then


def test_towers_lie_on_one_host_each_and_train_as_on_one_process(tmp_path):
    mp.start_processes(in_group, (str(tmp_path),), nprocs=WORLD, start_method="spawn")
    for rank in range(WORLD):
        for answer in json.loads((tmp_path / f"{rank}.json").read_text()):
            assert max(answer["differences"]) < 1e-6
            hosts = {tower: [found for name, found in answer["hosts"].items() if name[0] == tower] for tower in "abc"}
            assert all(len(found[0]) == 1 and found == found[:1] * len(found) for found in hosts.values())
            assert hosts["b"][0] <= hosts["c"][0]  # outputs of a collection come host by host
