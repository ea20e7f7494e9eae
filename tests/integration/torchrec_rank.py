"""The program of one rank in the TorchRec tests; rank 0 compares the results of all ranks."""

from __future__ import annotations

import gc
import logging
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor

from shardwright.integrations.torchrec.models import EPSILON, Batches, feature_names, modules_for
from shardwright.integrations.torchrec.steps.memory import allocated_bytes
from shardwright.integrations.torchrec.steps.sharded import ShardedModel, planned
from shardwright.measure.collectives.rank import main
from shardwright.sharding import Plan

LEARNING_RATE = 0.1
STEPS = 3


def answer(member, request, policy):
    """Numerics, memory, or peak of a step of one plan."""
    plan = Plan.load(request["plan"])
    if request["kind"] == "numerics":
        return numerics(plan, member)
    if request["kind"] == "peak":
        return peak(plan, member)
    return memory(plan, member)


def numerics(plan, member):
    """Largest difference of forward passes over the steps, and of all rows after them, to the unsharded module on all ranks' batches."""
    task = plan.task
    torch.manual_seed(5)
    reference = modules_for(task, "cpu")
    torch.manual_seed(5)
    sharding_plan = planned(plan, "cpu")
    sharded = ShardedModel.of(task, sharding_plan, member, module=modules_for(task, "cpu"), learning_rate=LEARNING_RATE)
    states = {}
    batches, differences = Batches(task, seed=1), []
    for step in range(STEPS):
        per_rank = [batches.draw(step, rank) for rank in range(member.world)]
        expected = [reference(batch).by_feature() for batch in per_rank]
        sharded_outputs = sharded.forward(per_rank[member.rank]).by_feature()
        differences.append(difference(sharded_outputs, expected[member.rank]))
        reference.zero_grad()
        for rank, outputs in enumerate(expected):  # as TorchRec does, gradients are averaged over the ranks
            gradients = gradients_of(outputs, step, rank)
            names = list(outputs)
            torch.autograd.backward(
                [outputs[name] for name in names], [gradients[name] / member.world for name in names], retain_graph=True
            )
        update(plan, reference, states)
        own = gradients_of(sharded_outputs, step, member.rank)
        sharded.update(list(sharded_outputs.values()), [own[name] for name in sharded_outputs])
    every = all_rows(task)
    final = difference(sharded.forward(every).by_feature(), reference(every).by_feature())
    moved = difference(reference(every).by_feature(), fresh(task)(every).by_feature())
    worst = torch.tensor([*differences, final], dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    kinds = {name: part.sharding_type for part in sharding_plan.plan.values() for name, part in part.items()}
    return {"differences": worst.tolist(), "moved": moved, "kinds": kinds}


@torch.no_grad()
def update(plan, reference, states):
    """The optimizers by their definitions. Row-wise Adagrad has one state for each row of a column block."""
    for name, weights in reference.named_parameters():
        table = name.split(".")[-2]
        for start, stop in {shard.columns for shard in plan.by_table[table]}:
            gradient = weights.grad[:, start:stop]
            if plan.task.optimizer == "sgd":
                weights[:, start:stop] -= LEARNING_RATE * gradient
                continue
            squares = gradient**2
            if plan.task.optimizer == "rowwise_adagrad":
                squares = squares.mean(dim=1, keepdim=True)
            state = states[table, start] = states.get((table, start), 0.0) + squares
            weights[:, start:stop] -= LEARNING_RATE * gradient / (state.sqrt() + EPSILON)


def fresh(task):
    torch.manual_seed(5)
    return modules_for(task, "cpu")


def gradients_of(outputs, step, rank):
    """The same gradients for the same table, step and rank, whatever the order of tables."""
    result = {}
    for name in sorted(outputs):
        rng = np.random.default_rng([step, rank, *name.encode()])
        result[name] = torch.from_numpy(rng.standard_normal(tuple(outputs[name].shape), dtype=np.float32))
    return result


def difference(outputs, expected):
    assert outputs.keys() == expected.keys()
    return max(float((outputs[name].detach() - expected[name].detach()).abs().max()) for name in expected)


def all_rows(task):
    """Every row of every table once for each feature, in bags of one; smaller tables end with empty bags."""
    most = max(table.rows for table in task.tables)
    rows = [table.rows for table in task.tables for _ in table.poolings]
    return KeyedJaggedTensor.from_lengths_sync(
        keys=[name for table in task.tables for name in feature_names(table)],
        values=torch.cat([torch.arange(count) for count in rows]),
        lengths=torch.cat([(torch.arange(most) < count).long() for count in rows]),
    )


def memory(plan, member):
    """Bytes of each rank after one step: weights, optimizer state, and all new tensors that are still held."""
    gc.freeze()  # earlier objects do not count
    sharded = ShardedModel.of(plan.task, planned(plan, "cpu"), member)
    outputs = sharded.forward(Batches(plan.task).draw(0, member.rank)).tensors()
    sharded.update(outputs, [torch.ones_like(output) for output in outputs])
    del outputs
    table = torch.zeros(member.world, 3, dtype=torch.int64)
    table[member.rank] = torch.tensor([*allocated_bytes(sharded), new_tensor_bytes()])
    dist.all_reduce(table)
    return {"bytes": table.tolist()}


def peak(plan, member):
    """Most bytes that each rank holds at a time in the third step, beyond those that it held before."""
    sharded = ShardedModel.of(plan.task, planned(plan, "cpu"), member)

    def step(number):
        outputs = sharded.forward(Batches(plan.task).draw(number, member.rank)).tensors()
        sharded.update(outputs, [torch.ones_like(output) for output in outputs])

    step(0)
    step(1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(2)
    changes = [event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    table = torch.zeros(member.world, dtype=torch.int64)
    table[member.rank] = int(np.cumsum(changes).max())
    dist.all_reduce(table)
    return {"peak": table.tolist()}


def new_tensor_bytes():
    """Bytes of the storages of all tensors that Python reaches, except frozen ones."""
    gc.collect()
    storages = {}
    for candidate in gc.get_objects():
        if issubclass(type(candidate), torch.Tensor) and candidate.device.type == "cpu":
            try:
                storage = candidate.untyped_storage()
            except (NotImplementedError, RuntimeError):  # of sharded tensors, whose parts are looked at themselves
                continue
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    main(answer)
