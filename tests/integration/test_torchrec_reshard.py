"""A better plan is applied to a running module by TorchRec's `reshard`: rows and optimizer state move, and training goes on as before."""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

WORLD, SAMPLES, TABLES = 2, 6, 4
KEYS = [f"f{i}" for i in range(TABLES)]


def in_group(rank, folder):
    """Run the test on a rank, and write its results to a file."""
    os.environ |= {"LOCAL_WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    try:
        answer = {"table_wise": moved(rank, "table_wise"), "column_wise": moved(rank, "column_wise")}
        dist.barrier()
    finally:
        dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(answer))
    os._exit(0)  # threads of the libraries that still run when an interpreter ends abort it now and then


def sharded_on(plan, sharders):
    """A module on a plan, trained for two steps. TorchRec's `reshard` needs a dense layer beside the tables."""
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import ShardingEnv

    sharded = DistributedModelParallel(
        model(), ShardingEnv.from_process_group(dist.group.WORLD), torch.device("cpu"), plan, sharders
    )
    whole = model().state_dict()
    with torch.no_grad():
        for name, weights in sharded.state_dict().items():
            for shard in weights.local_shards() if hasattr(weights, "local_shards") else ():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.copy_(whole[name][row : row + rows, column : column + columns])
    for step in range(2):
        trained(sharded, step)
    return sharded


def model():
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    torch.manual_seed(0)
    module = torch.nn.Module()
    module.tables = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=f"t{i}", num_embeddings=50, embedding_dim=16, feature_names=[key])
            for i, key in enumerate(KEYS)
        ]
    )
    module.over = torch.nn.Linear(4, 4)
    return module


def trained(sharded, step):
    """Train one step; return the outputs before it."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    drawn = torch.Generator().manual_seed(10 * step + dist.get_rank())
    lengths = torch.full((len(KEYS) * SAMPLES,), 2)
    ids = torch.randint(0, 50, (int(lengths.sum()),), generator=drawn)
    embeddings = sharded.module.tables(KeyedJaggedTensor.from_lengths_sync(KEYS, ids, lengths)).to_dict()
    outputs = torch.cat([embeddings[key] for key in KEYS], dim=1)
    (outputs * torch.arange(outputs.shape[1])).sum().backward()
    return outputs.detach()


def moved(rank, kind):
    """The tables that a review's better plan moves, and the difference of later steps from those of an unmoved module."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner.types import ParameterConstraints, Topology
    from torchrec.distributed.sharding.dynamic_sharding import output_sharding_plans_delta

    import shardwright as sw
    from shardwright.integrations.torchrec import ShardwrightPlanner, problem_of, sharding_plan_of

    sharders = [
        EmbeddingBagCollectionSharder(
            fused_params={"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1}
        )
    ]
    topology = Topology(WORLD, "cpu")
    given = {f"t{i}": ParameterConstraints(sharding_types=[kind], min_partition=8) for i in range(TABLES)}
    problem = problem_of(model(), sharders, topology, SAMPLES, given)
    halves = [(0, 8), (8, 16)] if kind == "column_wise" else [(0, 16)]
    poor = [
        sw.Shard(table.name, (0, table.rows), half, (place,))
        for table in problem.task.tables
        for place, half in enumerate(halves)
    ]
    plan = sharding_plan_of(sw.Plan(problem.task, poor), problem)
    stays, moves = sharded_on(plan, sharders), sharded_on(plan, sharders)
    if kind == "table_wise":
        planner = ShardwrightPlanner(topology, SAMPLES, stats=[], constraints=given)
        _, better = planner.review(moves, sharders, pg=dist.group.WORLD)
    else:
        other = [sw.Shard(shard.table, shard.rows, shard.columns, (1 - shard.devices[0],)) for shard in poor]
        better = sharding_plan_of(sw.Plan(problem.task, other), problem)
    change = output_sharding_plans_delta(dict(moves.plan.plan), dict(better.plan))
    moves.reshard(change, "tables")
    differences = [float((trained(moves, step) - trained(stays, step)).abs().max()) for step in range(2, 5)]
    ranks = {name: table.ranks for name, table in moves.plan.plan["tables"].items()}
    return {"moved": sorted(change["tables"][1]), "differences": differences, "ranks": ranks}


def test_a_better_plan_is_applied_to_a_running_module(tmp_path, monkeypatch):
    """TorchRec tags messages by a hash of the table's name, which is equal on all ranks only with one hash seed."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    mp.start_processes(in_group, (str(tmp_path),), nprocs=WORLD, start_method="spawn")
    for rank in range(WORLD):
        answer = json.loads((tmp_path / f"{rank}.json").read_text())
        assert max(answer["table_wise"]["differences"] + answer["column_wise"]["differences"]) == 0
        assert len(answer["table_wise"]["moved"]) == TABLES // 2  # all of them were on one rank
        assert sorted(answer["table_wise"]["ranks"].values()) == [[0], [0], [1], [1]]
        assert answer["column_wise"]["moved"] == [f"t{i}" for i in range(TABLES)]
