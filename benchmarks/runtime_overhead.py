"""Cost of the runtime against a hand-written row-wise all-to-all with the same bytes: python -m benchmarks.runtime_overhead --help.

Both run in the same processes, on the same batches, turn by turn. The hand-written version assumes tables of one width, equal row
blocks, and no ranks by hotness; it checks nothing and counts nothing.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.hosts.together import all_to_all, everyone
from benchmarks.program import Options, options_of
from benchmarks.results_table import command_of, write_results
from shardwright.runtime import ShardedEmbeddings
from shardwright.runtime.optimizers import OptimizerOptions, update
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology


class ByHand(torch.nn.Module):
    """Equal row blocks on all ranks, exchanged by a plain all-to-all."""

    def __init__(self, tables: int, rows: int, dim: int, optimizer: str) -> None:
        super().__init__()
        self.rank, self.ranks, self.members = dist.get_rank(), dist.get_world_size(), everyone()
        self.block = rows // self.ranks
        self.base = torch.arange(tables) * self.block
        self.weights = torch.zeros(tables * self.block, dim)
        self.state = torch.zeros(tables * self.block, 1)
        self.optimizer, self.options = optimizer, OptimizerOptions()
        self.trigger = torch.zeros((), requires_grad=True)
        self.buffers = [torch.empty(0, dim)] * 3

    def buffer(self, number: int, rows: int) -> torch.Tensor:
        """Return reused memory: fresh pages for every message would cost more than filling them."""
        if self.buffers[number].shape[0] < rows:
            self.buffers[number] = torch.empty(rows + rows // 8, self.weights.shape[1])
        return self.buffers[number][:rows]

    def forward(self, features: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        """Return the rows of each table."""
        values = [ids for ids, _ in features.values()]
        return list(_HandStep.apply(self.trigger, self, torch.cat(values), [ids.numel() for ids in values]))


class _HandStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, trigger, module, ids, sizes):
        owner = ids // module.block
        slots = ids - owner * module.block + torch.repeat_interleave(module.base, torch.tensor(sizes))
        order = torch.sort(owner.to(torch.uint8), stable=True).indices
        sent = torch.bincount(owner, minlength=module.ranks)
        received = torch.empty_like(sent)
        all_to_all(received, sent, [1] * module.ranks, [1] * module.ranks, module.members)
        sent, received = sent.tolist(), received.tolist()
        asked = torch.empty(sum(received), dtype=torch.int64)
        all_to_all(asked, slots[order], received, sent, module.members)
        rows = module.buffer(0, ids.numel())
        found = torch.index_select(module.weights, 0, asked, out=module.buffer(1, asked.numel()))
        all_to_all(rows, found, sent, received, module.members)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel())
        ctx.module, ctx.saved = module, (order, asked, sent, received)
        return tuple(rows[back].split(sizes))

    @staticmethod
    def backward(ctx, *gradients):
        module, (order, asked, sent, received) = ctx.module, ctx.saved
        together = torch.cat(gradients, out=module.buffer(2, order.numel()))
        gradient = torch.index_select(together, 0, order, out=module.buffer(0, order.numel()))
        rows = module.buffer(1, asked.numel())
        all_to_all(rows, gradient, received, sent, module.members)
        ordered, order = torch.sort(asked, stable=True)
        touched, counts = torch.unique_consecutive(ordered, return_counts=True)
        sums = torch.embedding_bag(rows, order, torch.cumsum(counts, 0) - counts, False, 0)[0]
        update(module.optimizer, module.options, 1, module.weights, [module.state], touched, sums)
        return None, None, None, None


def batch(args: Options, rank: int, step: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng([rank, step])
    features = {}
    for index in range(args.tables):
        lengths = rng.integers(0, 2 * args.length + 1, size=args.samples)
        ids = (args.rows * rng.random(lengths.sum()) ** args.skew).astype(np.int64)
        features[f"t{index}"] = torch.from_numpy(ids), torch.from_numpy(lengths)
    return features


def step_seconds(
    module: torch.nn.Module, features: dict[str, tuple[torch.Tensor, torch.Tensor]], by_hand: bool
) -> list[float]:
    """Return the seconds of the forward and of the backward pass."""
    dist.barrier()
    start = time.perf_counter()
    out = module(features)
    middle = time.perf_counter()
    rows = out if by_hand else [one.values for one in out.values()]
    gradients = [torch.ones_like(one) for one in rows]
    dist.barrier()
    again = time.perf_counter()
    torch.autograd.backward(rows, gradients)
    return [middle - start, time.perf_counter() - again]


def rank_main(rank: int, args: Options, port: int, results: mp.SimpleQueue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.ranks, timeout=timedelta(seconds=120)
    )
    tables = [Table(f"t{index}", args.rows, args.dim, args.length, False) for index in range(args.tables)]
    block = args.rows // args.ranks
    shards = [
        Shard(table.name, (place * block, (place + 1) * block), (0, args.dim), (place,))
        for table in tables
        for place in range(args.ranks)
    ]
    topology = Topology(1, args.ranks, memory="1 TB")
    ours = ShardedEmbeddings(Plan(Task(tables, topology, args.samples * args.ranks, args.optimizer), shards))
    by_hand = ByHand(args.tables, args.rows, args.dim, args.optimizer)
    by_hand.weights.copy_(ours.storage.weights[0].detach())
    times: dict[str, list[list[float]]] = {"ours": [], "by hand": []}
    for step in range(args.warm_up + args.repeats):
        features = batch(args, rank, step)
        pairs = [("ours", ours, False), ("by hand", by_hand, True)]
        for name, module, hand in pairs if step % 2 else reversed(pairs):
            seconds = step_seconds(module, features, hand)
            if step >= args.warm_up:
                times[name].append(seconds)
    same = torch.allclose(by_hand.weights, ours.storage.weights[0].detach(), atol=1e-6)
    mine = torch.tensor([times["ours"], times["by hand"]])
    every = [torch.empty_like(mine) for _ in range(args.ranks)]
    dist.all_gather(every, mine)
    if rank == 0:
        slowest = torch.stack(every).max(0).values
        results.put((slowest.tolist(), same, ours.traffic.total()))


def main() -> None:
    args = options_of(
        __doc__, None, ranks=2, tables=50, rows=50_000, dim=64, length=50, samples=64, repeats=30, warm_up=3,
        skew=(3.0, "ids are rows × u^skew for uniform u"), optimizer=("rowwise_adagrad", "", ["sgd", "rowwise_adagrad"]),
    )  # fmt: skip
    args.rows -= args.rows % args.ranks
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank_main, (args, port, results), args.ranks)
    (ours, by_hand), same, sent = results.get()
    assert same, "the two must train the same weights"
    rows = [
        _compared(name, [(one[place], other[place]) for one, other in zip(ours, by_hand, strict=True)])
        for place, name in enumerate(("forward", "backward"))
    ]
    rows.append(_compared("step", [(sum(one), sum(other)) for one, other in zip(ours, by_hand, strict=True)]))
    megabytes = sent / (args.repeats + args.warm_up) / 1e6
    caption = (
        f"{args.ranks} gloo processes on loopback, {args.tables} tables of dim {args.dim}, {args.samples} samples a rank, mean length "
        f"{args.length}, {args.optimizer}: rank 0 sends {megabytes:.1f} MB a step. Slowest rank; {args.repeats} steps, turn by turn."
    )
    heads = ("pass", "runtime, median ms", "by hand, median ms", "ratio of medians", "median of ratios")
    command = command_of("runtime_overhead", None)
    write_results(
        "runtime_overhead", "Runtime against a row-wise all-to-all by hand", [(caption, heads, rows)], command
    )


def _compared(name: str, pairs: list[tuple[float, float]]) -> tuple[str, ...]:
    ours, by_hand = (statistics.median(pair[place] for pair in pairs) * 1e3 for place in (0, 1))
    ratio = statistics.median(one / other for one, other in pairs)
    return name, f"{ours:.1f}", f"{by_hand:.1f}", f"{ours / by_hand:.3f}", f"{ratio:.3f}"


if __name__ == "__main__":
    main()
