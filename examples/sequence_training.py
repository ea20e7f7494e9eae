"""Train a small sequence model on tiered embeddings, with four processes as two hosts of two devices: python examples/sequence_training.py.

The model guesses the next item of a history: it scores the next item and some others against the mean of the last items' embeddings.
Hot items are replicated on all devices, warm ones once per host, cold ones lie on one device. On a cluster, torchrun starts the processes,
and the plan comes from a file.
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

HOSTS, NEAR, ITEMS, DIM = 2, 2, 2000, 16
SAMPLES, LENGTH, OTHERS, STEPS = 32, 10, 7, 60


def tiered_plan() -> sw.Plan:
    """Return a plan: the hottest 5% of items on every device, the next 15% once per host, the rest once."""
    table = sw.Table("item", ITEMS, DIM, LENGTH, pooled=False, access=sw.AccessProfile.zipf(ITEMS, 1.1))
    hot, warm = ITEMS // 20, ITEMS // 5
    rails = [tuple(range(local, HOSTS * NEAR, NEAR)) for local in range(NEAR)]
    tiers = [
        (0, hot, [tuple(range(HOSTS * NEAR))]),
        (hot, warm, rails),
        (warm, ITEMS, [(rank,) for rank in range(HOSTS * NEAR)]),
    ]
    shards = [
        sw.Shard("item", rows, (0, DIM), devices, "hotness", (start, stop) if start else None)
        for start, stop, holders in tiers
        for rows, devices in zip(dealt_ranges((start, stop), len(holders)), holders, strict=True)
    ]
    topology = sw.Topology(HOSTS, NEAR, memory="1 GB")
    task = sw.Task([table], topology, SAMPLES * HOSTS * NEAR, "rowwise_adagrad", exchange=Exchange("host", "touched"))
    plan = sw.Plan(task, shards)
    plan.check()
    return plan


def histories(rng: np.random.Generator) -> np.ndarray:
    """Draw histories of users who walk in circles of 20 items, so that the last items determine the next."""
    circle = (ITEMS / 20 * rng.random(SAMPLES) ** 4).astype(np.int64)
    place = rng.integers(0, 20, SAMPLES)
    return circle[:, None] * 20 + (place[:, None] + np.arange(LENGTH + 1)) % 20


def loss_of(embedding: ShardedEmbeddings, rng: np.random.Generator) -> torch.Tensor:
    """Return the cross-entropy of the next item among itself and others."""
    items = histories(rng)
    others = rng.integers(0, ITEMS, (SAMPLES, OTHERS))
    ids = torch.from_numpy(np.concatenate([items, others], axis=1))
    lengths = torch.full((SAMPLES,), ids.shape[1])
    rows = embedding({"item": (ids.flatten(), lengths)})["item"].values.view(SAMPLES, -1, DIM)
    weights = torch.linspace(0, 1, LENGTH) / LENGTH * 2
    history = (rows[:, :LENGTH] * weights[:, None]).sum(1)
    scores = (rows[:, LENGTH:] @ history[:, :, None]).squeeze(2)
    return torch.nn.functional.cross_entropy(scores, torch.zeros(SAMPLES, dtype=torch.int64))


def rank_main(rank: int, port: int, folder: str) -> None:
    """Join the other processes, train, and leave."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", timedelta(seconds=60), HOSTS * NEAR, rank)
    train(rank, folder)
    gc.collect()  # objects that hold the group keep its threads alive, and such a thread can abort an ending interpreter
    dist.destroy_process_group()


def train(rank: int, folder: str) -> None:
    """Train, save a checkpoint and load it again, as one of the processes."""
    hottest = np.random.default_rng(0).permutation(ITEMS)  # in real use: from `shardwright profile`
    embedding = ShardedEmbeddings(
        tiered_plan(),
        rank_maps={"item": RankMap(ITEMS, hottest)},
        learning_rate=0.3,
        initial=lambda table, ids: first_rows(ids),
        debug=True,
    )
    for step in range(STEPS):
        loss = loss_of(embedding, np.random.default_rng([rank, step]))
        loss.backward()  # updates the embeddings as well
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0 and step % 10 == 9:
            print(f"step {step + 1:3}  loss {mean.item() / dist.get_world_size():.4f}")
    if rank == 0:
        inter, intra = (embedding.traffic.total(link) / STEPS for link in ("inter", "intra"))
        print(f"rank 0 sent {inter:.0f} bytes a step between hosts and {intra:.0f} inside its host")
    save_checkpoint(embedding, folder)
    again = ShardedEmbeddings(embedding.plan, rank_maps=embedding.ranking.maps)
    load_checkpoint(again, folder)
    assert torch.equal(again.storage.weights[0], embedding.storage.weights[0])


def first_rows(ids: np.ndarray) -> np.ndarray:
    """Return small random rows, the same for an id on any rank."""
    steps = np.arange(1, DIM + 1)
    return (0.3 * np.sin((ids[:, None] + 1) * steps * 12.9898)).astype(np.float32)


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
