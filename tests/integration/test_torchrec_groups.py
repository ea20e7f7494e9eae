"""`DMPCollection` trains on plans of sharding groups as unsharded models do: four gloo processes in two groups.

`DMPCollection` refuses CPUs by the first statement of its constructor, and gives shards of CPUs a device number that their tensors lack.
Here its code runs without these two; all else is TorchRec's. gloo has no average, so a hook of `DMPCollection`'s own sums and divides.
Fully sharded groups need CUDA streams.
"""

import ast
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("torchrec", reason="needs TorchRec")

import torch
import torch.distributed as dist
from tests.gloo import answers_of, each

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

WORLD, SIZE, BATCH, STEPS, RATE = 4, 2, 6, 4, 0.5
KINDS = {"t0": "row_wise", "t1": "column_wise", "t2": "data_parallel", "t3": "table_wise"}
ROWS = {"t0": 53, "t1": 50, "t2": 17, "t3": 51}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Results of the tasks of this module, by rank; all run in one group, since processes take long to start."""
    folder = tmp_path_factory.mktemp("groups")
    functions = (train_by_ours, train_by_torchrec, choose, fail)
    return answers_of(each, functions, folder=folder, ranks=WORLD, per_host=SIZE)


def dmp_collection():
    """TorchRec's `DMPCollection`, for CPUs."""
    import torchrec.distributed.model_parallel as original

    tree = ast.parse(Path(original.__file__).read_text())
    (collection,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "DMPCollection")
    (init,) = (node for node in collection.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    init.body = [node for node in init.body if not isinstance(node, ast.Assert)]
    module = sys.modules["dmp_on_cpus"] = types.ModuleType("dmp_on_cpus")
    exec(compile(tree, original.__file__, "exec"), module.__dict__)

    class OnCpus(module.DMPCollection):
        def _remap_sharding_plan(self, plan, **fields):
            super()._remap_sharding_plan(plan=plan, **fields)
            for of_module in plan.plan.values():
                for table in of_module.values():
                    for shard in table.sharding_spec.shards if table.sharding_spec else ():
                        shard.placement = module._remote_device(f"rank:{shard.placement.rank()}/cpu")

    return OnCpus


def constant(weights):
    """All rows are equal until they are trained: a shard need not know which they are."""
    with torch.no_grad():
        weights.fill_(0.25)


def model():
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    tables = [
        EmbeddingBagConfig(
            name=name, num_embeddings=rows, embedding_dim=32, feature_names=[f"f{name}"], init_fn=constant
        )
        for name, rows in ROWS.items()
    ]
    result = torch.nn.Module()
    result.pooled = EmbeddingBagCollection(tables=tables)
    result.forward = lambda batch: result.pooled(batch).values()
    return result


def sharders():
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from tests.unit.integrations.torchrec.made import AllTypesSharder

    return [AllTypesSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": RATE})]


def arguments(world=SIZE, local=SIZE):
    from torchrec.distributed.planner.types import ParameterConstraints, Topology

    limits = {name: ParameterConstraints(sharding_types=[kind], min_partition=16) for name, kind in KINDS.items()}
    return {"topology": Topology(world, "cpu", local_world_size=local), "batch_size": BATCH, "constraints": limits}


def batch_of(step, rank):
    """Bags of up to three rows for each table, and a gradient for each of their sums."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    torch.manual_seed(100 * step + rank)
    lengths = torch.randint(0, 4, (len(ROWS), BATCH))
    values = [torch.randint(0, rows, (int(of.sum()),)) for rows, of in zip(ROWS.values(), lengths, strict=True)]
    batch = KeyedJaggedTensor.from_lengths_sync([f"f{name}" for name in ROWS], torch.cat(values), lengths.flatten())
    return batch, torch.randn(BATCH, 32 * len(ROWS))


def every_row():
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    most = max(ROWS.values())
    values = torch.cat([torch.arange(rows) for rows in ROWS.values()])
    lengths = torch.cat([(torch.arange(most) < rows).long() for rows in ROWS.values()])
    return KeyedJaggedTensor.from_lengths_sync([f"f{name}" for name in ROWS], values, lengths)


def unsharded(members, interval):
    """Every row after training: a model for each group, averaged when groups are; the replicated table's gradient is that of all ranks."""
    models = [model() for _ in members]
    for step in range(STEPS):
        gradients = [{}, {}]
        for group, ranks in enumerate(members):
            models[group].zero_grad()
            for rank in ranks:
                batch, gradient = batch_of(step, rank)
                models[group](batch).backward(gradient / len(ranks))
            gradients[group] = {name: one.grad.clone() for name, one in models[group].named_parameters()}
        with torch.no_grad():
            for name in gradients[0]:
                weights = [dict(one.named_parameters())[name] for one in models]
                mean = sum(of[name] for of in gradients) / len(models)
                for one, of in zip(weights, gradients, strict=True):
                    one.sub_(RATE * (mean if ".t2." in name else of[name]))
                if (step + 1) % interval == 0:
                    average = sum(weights) / len(models)
                    for one in weights:
                        one.copy_(average)
    return models[0](every_row()).detach()


def trained(plan, told, interval):
    """Every row after training by `DMPCollection`."""
    from torchrec.optim.optimizers import in_backward_optimizer_filter

    sharded = dmp_collection()(
        model(), torch.device("cpu"), plan, global_pg=dist.group.WORLD, sharders=sharders(), **told
    )
    replicas = sharded.device_mesh.get_group("replicate")

    def average(tensors):
        for tensor in tensors:
            dist.all_reduce(tensor, group=replicas)
            tensor.div_(dist.get_world_size(replicas))

    sharded.set_all_reduce_hook(average)
    dense = torch.optim.SGD([one for _, one in in_backward_optimizer_filter(sharded.named_parameters())], lr=RATE)
    for step in range(STEPS):
        batch, gradient = batch_of(step, dist.get_rank())
        dense.zero_grad()
        sharded(batch).backward(gradient)
        dense.step()
        if (step + 1) % interval == 0:
            sharded.sync()
    sharded.load_state_dict({name: value.clone() for name, value in sharded.state_dict().items()})
    return sharded(every_row()).detach()


def differences(make_planner):
    """Largest difference to the unsharded models, by how ranks lie in groups and how often groups are synchronised."""
    by_schedule = {}
    for inter, members in ((False, [(0, 2), (1, 3)]), (True, [(0, 1), (2, 3)])):
        for interval in (1, 2):
            plan = make_planner().collective_plan(model(), sharders(), dist.group.WORLD)
            kinds = {name: table.sharding_type for of in plan.plan.values() for name, table in of.items()}
            assert kinds == KINDS
            told = {"world_size": WORLD, "sharding_group_size": SIZE, "use_inter_host_allreduce": inter}
            after = trained(plan, told, interval)
            expected = unsharded(members, interval)
            moved = float((expected - 0.25).abs().max())
            by_schedule[f"inter {inter}, every {interval}"] = [float((after - expected).abs().max()), moved]
    return by_schedule


def train_by_ours(rank):
    from shardwright.integrations.torchrec import ShardwrightPlanner

    return differences(lambda: ShardwrightPlanner(**arguments(), stats=[]))


def train_by_torchrec(rank):
    from torchrec.distributed.planner import EmbeddingShardingPlanner

    return differences(lambda: EmbeddingShardingPlanner(**arguments(), stats=[]))


@pytest.mark.parametrize("planner", ["train_by_ours", "train_by_torchrec"])
def test_groups_train_as_unsharded_models_that_are_averaged(answers, planner):
    for of_rank in answers:
        assert len(of_rank[planner]) == 4
        for difference, moved in of_rank[planner].values():
            assert difference < 1e-5
            assert moved > 0.1


def choose(rank):
    """The planner gets all ranks and chooses groups; every rank trains with the groups that it receives."""
    from shardwright.integrations.torchrec import ShardwrightPlanner, dmp_arguments

    choices = []
    for size in (2, "auto"):
        fields = arguments(WORLD, SIZE)
        planner = ShardwrightPlanner(**fields, stats=[], sharding_group_size=size, sync_interval=2)
        plan = planner.collective_plan(model(), sharders(), dist.group.WORLD)
        told = dmp_arguments(planner.last_groups)
        groups = planner.last_groups
        members = [tuple(groups.ranks(group)) for group in range(groups.count)]
        sizes = [sized.groups.size for sized in planner.last_group_sizes or ()]
        difference = float((trained(plan, told, 2) - unsharded(members, 2)).abs().max()) if size == 2 else None
        choices.append([groups.size, sizes, difference])
    return choices


def test_all_ranks_know_the_groups_that_the_first_has_chosen(answers):
    first = answers[0]["choose"]
    assert first[0][:2] == [2, [2]]
    assert first[1][1] == [1, 2, 4]
    for of_rank in answers:
        assert [size for size, *_ in of_rank["choose"]] == [2, first[1][0]]
        assert of_rank["choose"][0][2] < 1e-5


def fail(rank):
    from torchrec.distributed.planner.types import PlannerError

    from shardwright.integrations.torchrec import ShardwrightPlanner

    outcomes = []
    for fields in (arguments(3, 3), {**arguments(2, 2), "sharding_group_size": 1}):
        try:
            ShardwrightPlanner(**fields, stats=[]).collective_plan(model(), sharders(), dist.group.WORLD)
            outcomes.append("planned")
        except PlannerError as error:
            outcomes.append(str(error))
    return outcomes


def test_ranks_that_groups_do_not_divide_are_refused(answers):
    for of_rank in answers:
        other_size, not_whole = of_rank["fail"]
        assert "world_size 3 and the process group 4 ranks" in other_size
        assert "sharding group of DMPCollection" in other_size
        assert "world_size 2 and the process group 4 ranks" in not_whole
