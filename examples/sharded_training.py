"""Train a small DLRM on tables in any blocks, with four processes as two hosts of two devices: python examples/sharded_training.py.

The model predicts whether a user clicks an item. Users and tags are pooled; the last items of a user are a sequence. The users' columns
are cut unequally, and the tags' rows lie on two devices. Hot items lie on all devices, warm ones once per host, cold ones on one device.
All of that travels in one exchange. On a cluster, torchrun starts the processes, and the plan comes from a file.
"""

import gc
import os
import socket
import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import shardwright as sw
from shardwright.runtime import ShardedEmbeddings, load_checkpoint, save_checkpoint
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.shard import dealt_ranges
from shardwright.task.topology import Exchange

HOSTS, NEAR, DIM = 2, 2, 16
USERS, TAGS, ITEMS = 400, 300, 2000
SAMPLES, TAGGED, LENGTH, DENSE, STEPS = 64, 3, 10, 4, 80


def any_blocks() -> sw.Plan:
    """Return a plan that only this runtime trains."""
    user = sw.Table("user", USERS, DIM, 1.0)
    tag = sw.Table("tag", TAGS, DIM, TAGGED)
    item = sw.Table("item", ITEMS, DIM, LENGTH + 1, pooled=False, access=sw.AccessProfile.zipf(ITEMS, 1.1))
    shards = [
        sw.Shard("user", (0, USERS), (0, 4), (0,)),
        sw.Shard("user", (0, USERS), (4, DIM), (3,)),
        sw.Shard("tag", (0, 200), (0, DIM), (1,)),
        sw.Shard("tag", (200, TAGS), (0, DIM), (2,)),
    ]
    hot, warm, everyone = ITEMS // 20, ITEMS // 5, tuple(range(HOSTS * NEAR))
    rails = [everyone[local::NEAR] for local in range(NEAR)]
    for start, stop, holders in [
        (0, hot, [everyone]),
        (hot, warm, rails),
        (warm, ITEMS, [(rank,) for rank in everyone]),
    ]:
        blocks = zip(dealt_ranges((start, stop), len(holders)), holders, strict=True)
        tier = (start, stop) if start else None
        shards += [sw.Shard("item", rows, (0, DIM), devices, "hotness", tier) for rows, devices in blocks]
    topology = sw.Topology(HOSTS, NEAR, memory="1 GB")
    task = sw.Task(
        [user, tag, item], topology, SAMPLES * HOSTS * NEAR, "rowwise_adagrad", exchange=Exchange("host", "touched")
    )
    plan = sw.Plan(task, shards)
    plan.check()
    return plan


class ClickModel(torch.nn.Module):
    """Embeddings on all ranks together, and dense layers that every rank has."""

    def __init__(self, embeddings: ShardedEmbeddings) -> None:
        super().__init__()
        self.embeddings = embeddings
        torch.manual_seed(0)
        bottom = torch.nn.Sequential(torch.nn.Linear(DENSE, DIM), torch.nn.ReLU())
        top = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
        self.dense = torch.nn.ModuleDict({"bottom": bottom, "top": top})

    def forward(self, dense: torch.Tensor, features: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """`(samples,)` scores of clicks."""
        found = self.embeddings(features)
        items = found["item"].values.view(SAMPLES, LENGTH + 1, DIM)
        history, candidate = items[:, :LENGTH].mean(1), items[:, LENGTH]
        vectors = torch.stack([self.dense["bottom"](dense), found["user"], found["tag"], history, candidate], 1)
        pairs = torch.tril_indices(5, 5, -1)
        return self.dense["top"]((vectors @ vectors.transpose(1, 2))[:, pairs[0], pairs[1]]).squeeze(1)


def batch(rng: np.random.Generator) -> tuple[torch.Tensor, dict[str, tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """Draw dense features, ids and clicks: two of user, tags and history must be as odd as the item that is shown."""
    user, tag = rng.integers(0, USERS, SAMPLES), rng.integers(0, TAGS, (SAMPLES, TAGGED))
    item = (ITEMS * rng.random((SAMPLES, LENGTH + 1)) ** 3).astype(np.int64)
    item[:, :LENGTH] += (item[:, :1] - item[:, :LENGTH]) % 2  # all items of a history are odd, or all are even
    odd = [user % 2, (tag % 2).sum(1) * 2 > TAGGED, item[:, 0] % 2]
    clicks = sum((one == item[:, LENGTH] % 2).astype(int) for one in odd) >= 2
    ids = {"user": user, "tag": tag, "item": item % ITEMS}
    features = {
        name: (torch.from_numpy(its).flatten(), torch.full((SAMPLES,), its.size // SAMPLES))
        for name, its in ids.items()
    }
    return torch.from_numpy(rng.standard_normal((SAMPLES, DENSE))).float(), features, torch.from_numpy(clicks).float()


def train(rank: int, folder: str) -> None:
    """Train, save a checkpoint and load it into another plan, as one of the processes."""
    hottest = np.arange(ITEMS)  # in real use: from `shardwright profile`
    embeddings = ShardedEmbeddings(
        any_blocks(), rank_maps={"item": RankMap(ITEMS, hottest)}, learning_rate=0.2, initial=first_rows, debug=True
    )
    model = ClickModel(embeddings)
    optimizer = torch.optim.Adam(model.dense.parameters(), lr=0.01)  # the tables have theirs in the backward pass
    for step in range(STEPS):
        numbers, features, clicks = batch(np.random.default_rng([rank, step]))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(numbers, features), clicks)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.dense.parameters():  # as DistributedDataParallel does for larger layers
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0 and step % 10 == 9:
            print(f"step {step + 1:3}  loss {mean.item() / dist.get_world_size():.4f}")
    if rank == 0:
        inter, intra = (embeddings.traffic.total(link) / STEPS for link in ("inter", "intra"))
        print(f"rank 0 sent {inter:.0f} bytes a step between hosts and {intra:.0f} inside its host")
    save_checkpoint(embeddings, folder)
    whole = [sw.Shard.whole(table, place) for place, table in enumerate(embeddings.plan.task.tables)]
    again = ShardedEmbeddings(sw.Plan(embeddings.plan.task, whole))
    load_checkpoint(again, folder)
    numbers, features, _ = batch(np.random.default_rng([rank, STEPS]))
    with torch.no_grad():
        assert torch.allclose(ClickModel(again).embeddings(features)["user"], model.embeddings(features)["user"])


def first_rows(table: sw.Table, ids: np.ndarray) -> np.ndarray:
    """Return small random rows, the same for an id on any rank."""
    steps = np.arange(1, table.dim + 1)
    return (0.3 * np.sin((ids[:, None] + 1) * steps * 12.9898)).astype(np.float32)


def rank_main(rank: int, port: int, folder: str) -> None:
    """Join the other processes, train, and leave."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", timedelta(seconds=60), HOSTS * NEAR, rank)
    train(rank, folder)
    gc.collect()  # objects that hold the group keep its threads alive, and such a thread can abort an ending interpreter
    dist.destroy_process_group()


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (port, folder), HOSTS * NEAR)
        print(f"checkpoint: {len(list(Path(folder).iterdir()))} files")


if __name__ == "__main__":
    main()
