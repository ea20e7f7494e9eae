"""The program of one rank in the tests of checkpoints: a random model trains on our plan, is saved, and goes on under another plan."""

from __future__ import annotations

import logging
import os
import random
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import ShardingEnv
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from shardwright.integrations.torchrec import ShardwrightPlanner
from shardwright.integrations.torchrec.models import OPTIMIZERS
from shardwright.measure.collectives.rank import main

LEARNING_RATE, EPSILON = 0.1, 1e-3  # the smaller, the more Adagrad makes of rounding
SAMPLES, STEPS = 6, 2
BAG_TYPES = (
    "data_parallel",
    "table_wise",
    "column_wise",
    "row_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)
SEQUENCE_TYPES = BAG_TYPES[1:4]
COLUMNS = (None, ["column_wise"], ["column_wise", "table_wise"])


class BagSharder(EmbeddingBagCollectionSharder):
    """Offers all sharding types that TorchRec executes on CPUs, not only those that it plans there."""

    def sharding_types(self, compute_device_type):
        return [*BAG_TYPES]


class Model(nn.Module):
    """Pooled and sequence tables, of one or several features each.

    Args:
        draw: generator of its random parts.
    """

    def __init__(self, draw):
        super().__init__()
        self.rows = {}
        bags = [self._fields(draw, f"t{i}", 4 * draw.randint(4, 40)) for i in range(draw.randint(1, 5))]
        dim = 4 * draw.randint(4, 40)
        sequences = [self._fields(draw, f"s{i}", dim) for i in range(draw.randint(0, 3))]
        self.pooled = EmbeddingBagCollection(tables=[EmbeddingBagConfig(**fields) for fields in bags])
        self.sequence = (
            EmbeddingCollection(tables=[EmbeddingConfig(**fields) for fields in sequences]) if sequences else None
        )

    def _fields(self, draw, name, dim):
        rows = draw.choice([draw.randint(1, 12), draw.randint(12, 300)])
        features = [f"{name}_{i}" for i in range(draw.randint(1, 2))]
        self.rows |= dict.fromkeys(features, rows)
        return {"name": name, "num_embeddings": rows, "embedding_dim": dim, "feature_names": features}

    def forward(self, batch):
        """The loss of a batch; its gradients depend on the rows."""
        outputs = [self.pooled(batch).values()]
        if self.sequence is not None:
            outputs += [rows.values() for rows in self.sequence(batch).values()]
        return sum((output**2).sum() for output in outputs) / SAMPLES

    def batch(self, *seed):
        """Some bags are empty."""
        draw = torch.Generator().manual_seed(random.Random(str(seed)).getrandbits(32))
        lengths = torch.randint(0, 4, (len(self.rows), SAMPLES), generator=draw)
        counts = lengths.sum(dim=1).tolist()
        values = [
            torch.randint(0, n, (count,), generator=draw) for n, count in zip(self.rows.values(), counts, strict=True)
        ]
        return KeyedJaggedTensor.from_lengths_sync(list(self.rows), torch.cat(values), lengths.flatten())


def constraints_of(model, draw, world):
    """Random constraints of the tables: column blocks, a choice of types (row blocks only if every rank gets rows), or none."""
    asked = {}
    for module, types in ((model.pooled, BAG_TYPES), (model.sequence, SEQUENCE_TYPES)):
        for config in (
            []
            if module is None
            else getattr(module, "embedding_bag_configs", getattr(module, "embedding_configs", None))()
        ):
            filled = -(-config.num_embeddings // -(-config.num_embeddings // world)) == world
            free = [kind for kind in types if filled or kind not in ("row_wise", "table_row_wise", "grid_shard")]
            kinds = draw.choice([*COLUMNS, draw.sample(free, draw.randint(1, 2))])
            narrow = draw.choice([None, None, 4, 8, 16, 20])
            if kinds or narrow:
                asked[config.name] = ParameterConstraints(sharding_types=kinds, min_partition=narrow)
    return asked


class Sharded:
    """The model of a seed on a plan of ours.

    Args:
        seed: seed of the model.
        plan_seed: seed of constraints, strategy and search.
        near: ranks of a host.
        optimizer: name of the optimizer in a task.
    """

    def __init__(self, seed, plan_seed, near, optimizer):
        torch.manual_seed(plan_seed)  # other weights than the reference has
        model, draw = Model(random.Random(seed)), random.Random(plan_seed)
        world = dist.get_world_size()
        planner = ShardwrightPlanner(
            Topology(world, "cpu", local_world_size=near),
            SAMPLES,
            stats=[],
            constraints=constraints_of(model, draw, world),
            strategy=draw.choice(["auto", "certified", "neuroshard", "greedy"]),
            seed=plan_seed,
            time_limit=0.1,
        )

        def fused():
            return {"optimizer": OPTIMIZERS[optimizer], "learning_rate": LEARNING_RATE, "eps": EPSILON}

        sharders = [BagSharder(fused()), EmbeddingCollectionSharder(fused())]
        self.plan = planner.collective_plan(model, sharders)
        self.model = DistributedModelParallel(
            model, ShardingEnv.from_process_group(dist.group.WORLD), torch.device("cpu"), self.plan, sharders
        )
        replicated = [parameter for _, parameter in in_backward_optimizer_filter(self.model.named_parameters())]
        self._dense = _dense(optimizer, replicated) if replicated else None

    def step(self, batch):
        loss = self.model(batch)
        if self._dense is not None:
            self._dense.zero_grad()
        loss.backward()
        if self._dense is not None:
            self._dense.step()
        return loss.detach()

    def cuts(self):
        """Column ranges of each table; none of replicas."""
        return {
            name: sorted(
                {(s.shard_offsets[1], s.shard_offsets[1] + s.shard_sizes[1]) for s in table.sharding_spec.shards}
            )
            for of_module in self.plan.plan.values()
            for name, table in of_module.items()
            if table.sharding_spec is not None
        }

    def rows(self):
        """All rows of all tables on every rank, put together by the shards' own offsets."""
        return {name: whole(value) for name, value in self.model.state_dict().items()}

    def saved_state(self):
        """The optimizer's state of sharded tables: ShardedTensors by name, which share their memory with the kernels."""
        of_tables = self.model.fused_optimizer.state_dict()["state"].values()
        return {
            name: value
            for of_table in of_tables
            for name, value in of_table.items()
            if isinstance(value, ShardedTensor)
        }


def _dense(optimizer, parameters):
    if optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=LEARNING_RATE)
    kind = RowWiseAdagrad if optimizer == "rowwise_adagrad" else torch.optim.Adagrad
    return kind(parameters, lr=LEARNING_RATE, eps=EPSILON)


class Reference:
    """The unsharded model on all ranks' batches; TorchRec averages gradients over the ranks.

    Args:
        seed: seed of the model.
        optimizer: name of the optimizer in a task.
    """

    def __init__(self, seed, optimizer):
        torch.manual_seed(seed)
        self.model, self._optimizer, self._states = Model(random.Random(seed)), optimizer, {}

    def step(self, batches, cuts):
        """Train, and return each rank's loss. Row-wise Adagrad has one state for each row of a column block."""
        self.model.zero_grad()
        losses = [self.model(batch) for batch in batches]
        (sum(losses) / len(losses)).backward()
        with torch.no_grad():
            for name, rows in self.model.named_parameters():
                for start, stop in self._blocks(name.split(".")[-2], rows.shape[1], cuts):
                    self._update(name, rows[:, start:stop], rows.grad[:, start:stop], start)
        return [float(loss) for loss in losses]

    def keep(self, tables):
        """Forget the optimizer's state of all other tables."""
        self._states = {key: state for key, state in self._states.items() if key[0].split(".")[-2] in tables}

    def _blocks(self, table, dim, cuts):
        return cuts.get(table, [(0, dim)]) if self._optimizer == "rowwise_adagrad" else [(0, dim)]

    def _update(self, name, rows, gradient, start):
        if self._optimizer == "sgd":
            rows -= LEARNING_RATE * gradient
            return
        squares = gradient**2
        if self._optimizer == "rowwise_adagrad":
            squares = squares.mean(dim=1, keepdim=True)
        state = self._states[name, start] = self._states.get((name, start), 0.0) + squares
        rows -= LEARNING_RATE * gradient / (state.sqrt() + EPSILON)


def whole(value):
    if not isinstance(value, ShardedTensor):
        return value.detach().clone()
    rows, holders = torch.zeros(value.size()), torch.zeros(value.size())
    for shard in value.local_shards():
        block = tuple(
            slice(a, a + n) for a, n in zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
        )
        rows[block], holders[block] = shard.tensor.detach(), 1
    dist.all_reduce(rows)
    dist.all_reduce(holders)
    assert bool((holders == 1).all())  # every element lies on one rank
    return rows


def trained(sharded, reference, seed, steps, member):
    """Largest difference of the losses, relative, and then of all rows."""
    worst = 0.0
    for step in steps:
        batches = [reference.model.batch(seed, step, rank) for rank in range(member.world)]
        expected = reference.step(batches, sharded.cuts())[member.rank]
        worst = max(worst, abs(float(sharded.step(batches[member.rank])) - expected) / max(1.0, abs(expected)))
    return max(worst, difference(sharded.rows(), reference.model.state_dict()))


def difference(rows, expected):
    assert rows.keys() == expected.keys()
    return max(float((rows[name] - expected[name]).abs().max()) for name in expected)


def answer(member, request, policy):
    """The reply to a request. A rank that fails ends at once: the end of its process group would wait for the others."""
    try:
        return checked(member, request)
    except Exception:
        traceback.print_exc()
        os._exit(1)


def checked(member, request):
    """Train, save, load under the same and under another plan, and train on; the reply has the differences from the reference."""
    seed, near, optimizer = request["seed"], request["near"], request["optimizer"]
    os.environ["LOCAL_WORLD_SIZE"] = str(near)  # TorchRec reads its hosts from there
    reference = Reference(seed, optimizer)
    first = Sharded(seed, seed, near, optimizer)
    first.model.load_state_dict(reference.model.state_dict())
    differences = {"loaded": difference(first.rows(), reference.model.state_dict())}
    differences["trained"] = trained(first, reference, seed, range(STEPS), member)
    before_loading = first.rows()
    first.model.load_state_dict(first.model.state_dict())
    first.model.fused_optimizer.load_state_dict(first.model.fused_optimizer.state_dict())
    differences["same plan"] = difference(first.rows(), before_loading)
    differences["same plan, trained"] = trained(first, reference, seed, range(STEPS, 2 * STEPS), member)
    saved = first.rows()
    dcp.save({**first.model.state_dict(), **first.saved_state()}, checkpoint_id=request["folder"])

    second = Sharded(seed, seed + 1000, near, optimizer)
    differences["too alike"] = float(difference(second.rows(), saved) < 1e-3)  # else loading would show nothing
    before, after = first.cuts(), second.cuts()
    carried = {
        name for name in before.keys() & after.keys() if optimizer == "adagrad" or len(before[name]) == len(after[name])
    }
    target = second.model.state_dict()
    state = {name: state for name, state in second.saved_state().items() if name.split(".")[0] in carried}
    dcp.load({**target, **state}, checkpoint_id=request["folder"])
    second.model.load_state_dict(target)
    second.model.fused_optimizer.load_state_dict(second.model.fused_optimizer.state_dict())
    differences["other plan"] = difference(second.rows(), saved)
    reference.keep(carried)
    differences["other plan, trained"] = trained(second, reference, seed, range(2 * STEPS, 3 * STEPS), member)

    worst = torch.tensor([*differences.values()], dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return {
        "differences": dict(zip(differences, worst.tolist(), strict=True)),
        "cut": sum(len(cuts) > 1 for cuts in [*before.values(), *after.values()]),
        "changed": int(str(first.plan) != str(second.plan)),
        "carried": len(carried),
    }


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    main(answer)
