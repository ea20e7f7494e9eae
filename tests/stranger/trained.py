"""Trains two steps on an exported plan, with two gloo processes: `python trained.py FOLDER`, a folder with plan_torchrec.py."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS, BATCH = 2, 8


def _rank(rank: int, folder: str, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    sys.path.insert(0, folder)
    import plan_torchrec
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

    import shardwright as sw

    tables = sw.Plan.load(Path(folder) / "plan.json").task.tables
    configs = [
        EmbeddingBagConfig(name=one.name, num_embeddings=one.rows, embedding_dim=one.dim, feature_names=[one.name])
        for one in tables
    ]
    torch.manual_seed(0)
    bags = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    model = plan_torchrec.sharded(torch.nn.Sequential(bags), torch.device("cpu"))
    for _ in range(2):
        keys = [one.name for one in tables]
        ids = torch.cat([torch.randint(one.rows, (BATCH,)) for one in tables])
        batch = KeyedJaggedTensor(keys, ids, lengths=torch.ones(len(keys) * BATCH, dtype=torch.int32))
        loss = model(batch).values().square().mean()
        loss.backward()
        assert torch.isfinite(loss)
    if rank == 0:
        print(f"two steps on {len(tables)} tables, loss {float(loss.detach()):.3g}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo and autograd may still run, which would abort an orderly exit of the interpreter


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    mp.spawn(_rank, (sys.argv[1], free), RANKS)
