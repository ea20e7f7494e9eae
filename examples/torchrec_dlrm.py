"""Train a DLRM with TorchRec on clicks, sharded by our plan and then by TorchRec's: python examples/torchrec_dlrm.py [CLICKS.parquet].

The file has columns `label` (0 or 1), `dense_…` (numbers) and `cat_…` (ids, or lists of ids); without a file, clicks are made up.
Two processes (gloo, this machine's cores) each train on half of every batch. Both plans start from the same weights and see the same
batches. So the losses of the first steps are equal under both plans; later the order of sums shows. Needs TorchRec: see "Installing" in
the README.
"""

import gc
import logging
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.optimizers import in_backward_optimizer_filter

from shardwright.integrations.torchrec import ShardwrightPlanner, with_profiles
from shardwright.integrations.torchrec.steps.sharded import load_weights
from shardwright.workload.profile import profile_logs

RANKS, BATCH, STEPS, DIM = 2, 256, 200, 16
ALIKE = 12  # steps before rounding grows: Adagrad's first update of a row is as large for a gradient of 1e-9 as for 1
OPTIMIZER = {"lr": 0.05, "eps": 1e-8}


def made_up_clicks(path: Path, samples: int = 20_000) -> None:
    """Write clicks that depend on hidden values of the ids; hot ids are frequent."""
    rng = np.random.default_rng(0)
    rows = {"cat_user": 5000, "cat_item": 2000, "cat_shop": 300, "cat_country": 30}
    columns = {f"dense_{i}": rng.standard_normal(samples).astype(np.float32) for i in range(4)}
    score = columns["dense_0"] - 0.5 * columns["dense_1"]
    for name, count in rows.items():
        ids = (count * rng.random(samples) ** 3).astype(np.int64)
        score = score + rng.standard_normal(count)[ids]
        columns[name] = ids
    tags = (500 * rng.random((samples, 3)) ** 2).astype(np.int64)
    label = (rng.random(samples) < 1 / (1 + np.exp(-score))).astype(np.int8)
    pl.DataFrame(columns | {"cat_tags": tags.tolist(), "label": label}).write_parquet(path)


def batches(clicks: pl.DataFrame, categories: list[str], rank: int) -> list[Batch]:
    """Return this rank's part of every step's batch; a short file is used repeatedly."""
    local, result = BATCH // RANKS, []
    dense = clicks.select(pl.selectors.starts_with("dense_")).to_numpy().astype(np.float32)
    for step in range(STEPS):
        start = (step * BATCH + rank * local) % (len(clicks) - local)
        part = clicks.slice(start, local)
        lists = [
            part[name] if part[name].dtype == pl.List else part[name].reshape((-1, 1)).arr.to_list()
            for name in categories
        ]
        features = KeyedJaggedTensor.from_lengths_sync(
            keys=categories,
            values=torch.from_numpy(np.concatenate([ids.explode().to_numpy() for ids in lists]).astype(np.int64)),
            lengths=torch.from_numpy(np.concatenate([ids.list.len().to_numpy() for ids in lists]).astype(np.int64)),
        )
        labels = torch.from_numpy(part["label"].to_numpy().astype(np.float32))
        result.append(Batch(torch.from_numpy(dense[start : start + local]), features, labels))
    return result


def dlrm(clicks: pl.DataFrame, categories: list[str], dense: int) -> DLRMTrain:
    """Return a small DLRM with one table per category, and as many rows as its largest id needs."""
    torch.manual_seed(0)
    sizes = {name: int(clicks[name].explode().max()) + 1 for name in categories}
    tables = [
        EmbeddingBagConfig(num_embeddings=rows, embedding_dim=DIM, name=f"t_{name}", feature_names=[name])
        for name, rows in sizes.items()
    ]
    bags = EmbeddingBagCollection(tables=tables, device=torch.device("cpu"))
    return DLRMTrain(DLRM(bags, dense, [32, DIM], [32, 1]))


def train(model: DLRMTrain, plan, sharders, steps: list[Batch]) -> list[float]:
    """Shard by a plan, train, and return the mean loss over the ranks of each step."""
    weights = model.state_dict()
    sharded = DistributedModelParallel(model, plan=plan, sharders=sharders, device=torch.device("cpu"))
    load_weights(weights, sharded)
    rest = [parameter for _, parameter in in_backward_optimizer_filter(sharded.named_parameters())]
    optimizer, losses = torch.optim.Adagrad(rest, **OPTIMIZER), []
    for batch in steps:
        optimizer.zero_grad()
        loss, _ = sharded(batch)
        loss.backward()
        optimizer.step()
        mean = loss.detach() / RANKS
        dist.all_reduce(mean)
        losses.append(float(mean))
    return losses


def rank_main(rank: int, meeting: str, path: str) -> None:
    """Join the other process, compare the plans, and leave."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    compare_plans(rank, path)
    gc.collect()  # sharded models keep the group's threads alive, and such a thread can abort an ending interpreter
    dist.destroy_process_group()


def compare_plans(rank: int, path: str) -> None:
    """Plan and train with both planners, as one of the processes."""
    clicks = pl.read_parquet(path)
    categories = [name for name in clicks.columns if name.startswith("cat_")]
    dense = sum(name.startswith("dense_") for name in clicks.columns)
    fused = {"optimizer": EmbOptimType.EXACT_ADAGRAD, "learning_rate": OPTIMIZER["lr"], "eps": OPTIMIZER["eps"]}
    sharders, topology = [EmbeddingBagCollectionSharder(fused)], Topology(world_size=RANKS, compute_device="cpu")
    profiles = profile_logs(path, columns=categories).tables(dim=DIM, rows="max_id")
    steps, losses = batches(clicks, categories, rank), {}
    planners = {
        "shardwright": ShardwrightPlanner(topology=topology, batch_size=BATCH // RANKS, stats=[], profiles=profiles),
        "torchrec": EmbeddingShardingPlanner(
            topology=topology, batch_size=BATCH // RANKS, stats=[],
            constraints=with_profiles(dlrm(clicks, categories, dense), profiles),
        ),
    }  # fmt: skip
    for name, planner in planners.items():
        model = dlrm(clicks, categories, dense)
        plan = planner.collective_plan(model, sharders, dist.group.WORLD)
        losses[name] = train(model, plan, sharders, steps)
        if rank == 0:
            placed = {
                table: (part.sharding_type, part.ranks) for parts in plan.plan.values() for table, part in parts.items()
            }
            print(f"{name}: loss {losses[name][0]:.4f} → {np.mean(losses[name][-20:]):.4f}  {placed}")
    apart = np.abs(np.subtract(losses["shardwright"], losses["torchrec"]))[:ALIKE].max()
    assert np.mean(losses["shardwright"][-20:]) < 0.95 * losses["shardwright"][0], "nothing was learned"
    assert apart < 1e-5, apart
    if rank == 0:
        print(f"losses of the first {ALIKE} steps differ by at most {apart:.1e}")


def main() -> None:
    """Start the processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "clicks.parquet"
        if len(sys.argv) == 1:
            made_up_clicks(path)
        meeting = (Path(folder) / "meeting").as_uri()
        torch.multiprocessing.spawn(rank_main, args=(meeting, str(path)), nprocs=RANKS)


if __name__ == "__main__":
    main()
