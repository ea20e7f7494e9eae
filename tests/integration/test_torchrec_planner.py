"""The planner in a real process group: one plan for all ranks, real sharded modules on it, and failures on every rank."""

import importlib
import os

import pytest

pytest.importorskip("torchrec")

import torch
import torch.distributed as dist
from tests.gloo import answers_of, each

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

WORLD = 2


def each_with_its_seed(rank, functions):
    os.environ["PYTHONHASHSEED"] = str(rank)
    return each(rank, functions)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Results of the tasks of this module, by rank; all run in one group, since processes take long to start."""
    functions = (plan_once, fail, run_columns, run_variable_batches, review_live)
    return answers_of(each_with_its_seed, functions, folder=tmp_path_factory.mktemp("group"), ranks=WORLD)


def made(world=WORLD, **fields):
    from torchrec.distributed.planner.types import Topology

    from shardwright.integrations.torchrec import ShardwrightPlanner

    return ShardwrightPlanner(Topology(world, "cpu"), 6, stats=[], **fields)


def model_and_sharders():
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    torch.manual_seed(0)
    model = torch.nn.Module()
    model.pooled = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=f"t{i}", num_embeddings=90 + i, embedding_dim=40, feature_names=[f"f{i}"])
            for i in range(3)
        ]
    )
    model.sequence = EmbeddingCollection(
        tables=[
            EmbeddingConfig(name=f"s{i}", num_embeddings=50 + i, embedding_dim=48, feature_names=[f"g{i}"])
            for i in range(2)
        ]
    )
    return model, [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]


def plan_once(rank):
    planner = made()
    model, sharders = model_and_sharders()
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    planner.plan(model, sharders)  # each rank for itself, for the hash
    return [str(plan), planner.hash_planner_context_inputs_str()]


def test_all_ranks_get_one_plan_and_hash_alike(answers):
    first, second = (of_rank["plan_once"] for of_rank in answers)
    assert first == second
    assert "t0" in first[0]


def fail(rank):
    from torchrec.distributed.planner.types import ParameterConstraints, PlannerError

    answers = []
    model, sharders = model_and_sharders()
    nothing = {"t0": ParameterConstraints(sharding_types=["row_wise"])}  # the default sharder has none on CPUs
    for planner in (made(constraints=nothing), made(world=3)):
        try:
            planner.collective_plan(model, sharders)
            answers.append("planned")
        except PlannerError as error:
            answers.append([error.error_type.value, str(error)])
    return answers


def test_a_failure_reaches_every_rank(answers):
    for rank, (constrained, other_world) in enumerate(of_rank["fail"] for of_rank in answers):
        assert constrained[0] == "strict_constraints"
        assert constrained[1].startswith("planning failed on the first rank") == (rank > 0)
        assert "pooled.t0" in constrained[1]
        assert other_world[0] == "input_validation"
        assert "world_size 3" in other_world[1]


def run_columns(rank):
    """Largest difference to the unsharded model, for column blocks of which a rank holds several."""
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingEnv
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    import shardwright as sw
    from shardwright.integrations.torchrec import problem_of, sharding_plan_of

    model, sharders = model_and_sharders()
    planner = made()
    cut = {name: ParameterConstraints(sharding_types=["column_wise"]) for name in ("t0", "t1", "t2", "s0", "s1")}
    problem = problem_of(model, sharders, planner._topology, 6, cut)
    blocks = {
        "t0": (8, [0, 1, 1, 0, 1]),
        "t1": (20, [1, 1]),  # as a table that is wider than kernels take, on one rank
        "t2": (40, [0]),
        "s0": (12, [0, 1, 1, 1]),
        "s1": (24, [0, 1]),
    }
    shards = [
        sw.Shard(name, (0, problem.task.table_by_name[name].rows), (width * index, width * (index + 1)), (place,))
        for name, (width, places) in blocks.items()
        for index, place in enumerate(places)
    ]
    plan = sharding_plan_of(sw.Plan(problem.task, shards), problem)
    whole = {name: weights.clone() for name, weights in model.state_dict().items()}
    sharded = DistributedModelParallel(
        model,
        ShardingEnv.from_process_group(dist.group.WORLD),
        torch.device("cpu"),
        plan,
        sharders,
        init_parameters=False,
    )
    with torch.no_grad():
        for name, weights in sharded.state_dict().items():
            for shard in weights.local_shards():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.copy_(whole[name][row : row + rows, column : column + columns])
    reference, _ = model_and_sharders()
    torch.manual_seed(rank)
    keys = ["f0", "f1", "f2", "g0", "g1"]
    lengths = torch.randint(0, 4, (len(keys) * 6,))
    batch = KeyedJaggedTensor.from_lengths_sync(keys, torch.randint(0, 50, (int(lengths.sum()),)), lengths)

    def outputs(module):
        pooled, sequence = module.pooled(batch).to_dict(), module.sequence(batch)
        return [pooled[key] for key in keys[:3]] + [sequence[key].values() for key in keys[3:]]

    pairs = zip(outputs(sharded.module), outputs(reference), strict=True)
    return max(float((ours - theirs).abs().max()) for ours, theirs in pairs)


def test_several_column_blocks_a_rank_run(answers):
    assert max(of_rank["run_columns"] for of_rank in answers) < 1e-5


def run_variable_batches(rank):
    """Sharding types of a plan for features of different batch sizes, with links so slow that replicas would pay, and its gradients."""
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner.types import ParameterConstraints, Topology
    from torchrec.distributed.types import ShardingEnv, ShardingType
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from shardwright.integrations.torchrec import ShardwrightPlanner

    class AllTypesSharder(EmbeddingBagCollectionSharder):
        def sharding_types(self, compute_device_type):
            return [kind.value for kind in ShardingType]

    configs = [
        EmbeddingBagConfig(name=f"t{i}", num_embeddings=50, embedding_dim=16, feature_names=[f"f{i}"]) for i in range(2)
    ]
    slow = Topology(WORLD, "cpu", intra_host_bw=1e3, inter_host_bw=1e3)
    sizes, kinds = {"f0": 5, "f1": 3}, []
    for given in ({}, {"t1": ParameterConstraints(batch_sizes=[2048])}):
        model = torch.nn.Sequential(EmbeddingBagCollection(tables=configs))
        plan = ShardwrightPlanner(slow, 4096, stats=[], constraints=given).collective_plan(model, [AllTypesSharder()])
        kinds.append([table.sharding_type for table in plan.plan["0"].values()])
    sharded = DistributedModelParallel(
        model, ShardingEnv.from_process_group(dist.group.WORLD), torch.device("cpu"), plan, [AllTypesSharder()]
    )
    every = sum(sizes.values())
    batch = KeyedJaggedTensor(
        list(sizes),
        torch.randint(0, 50, (every,)),
        lengths=torch.ones(every, dtype=torch.long),
        stride_per_key_per_rank=[[size] for size in sizes.values()],
        inverse_indices=(list(sizes), torch.tensor([[0, 1, 2, 3, 4, 0], [0, 1, 2, 0, 1, 2]])),
    )
    values = sharded.module[0](batch).values()
    values.sum().backward()
    return {"kinds": kinds, "shape": list(values.shape)}


def test_features_of_different_batch_sizes_run_without_replicas(answers):
    """TorchRec's replicas fail on CPUs with such features."""
    for answer in (of_rank["run_variable_batches"] for of_rank in answers):
        usual, variable = answer["kinds"]
        assert "data_parallel" in usual
        assert "data_parallel" not in variable
        assert answer["shape"] == [6, 32]


def review_live(rank):
    """The review of a model that trains on a poor plan: the verdict, and the better plan."""
    from torch.distributed.optim import _apply_optimizer_in_backward
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import ShardingEnv
    from torchrec.optim import RowWiseAdagrad

    import shardwright as sw
    from shardwright.integrations.torchrec import problem_of, sharding_plan_of

    model, sharders = model_and_sharders()
    _apply_optimizer_in_backward(RowWiseAdagrad, model.parameters(), {"lr": 0.1})
    planner = made(time_limit=60.0)  # a busy machine may take longer than the usual limit to prove a bound
    task = problem_of(model, sharders, planner._topology, 6)
    poor = sw.Plan(
        task.task, [sw.Shard(table.name, (0, table.rows), (0, table.dim), (0,)) for table in task.task.tables]
    )
    sharded = DistributedModelParallel(
        model,
        ShardingEnv.from_process_group(dist.group.WORLD),
        torch.device("cpu"),
        sharding_plan_of(poor, task),
        sharders,
    )
    verdict, better = planner.review(sharded, sharders)
    again, kept = planner.review(sharded, sharders, better)
    before = {name: tuple(weights.shape) for name, weights in sharded.state_dict().items()}
    return {
        "better": verdict.better_ms < verdict.step_ms,
        "bound": verdict.bound_ms <= verdict.better_ms,
        "ranks": sorted(
            {place for module in better.plan.values() for table in module.values() for place in table.ranks}
        ),
        "kept": kept is better,
        "gain": again.gain,
        "optimizer": verdict.plan.task.optimizer,
        "before": before,
    }


def test_a_live_model_is_reviewed_in_one_call_and_stays_as_it_is(answers):
    for answer in (of_rank["review_live"] for of_rank in answers):
        assert answer["better"]
        assert answer["bound"]
        assert answer["ranks"] == [0, 1]
        assert answer["kept"]
        assert answer["gain"] == 0
        assert answer["optimizer"] == "rowwise_adagrad"
        assert answer["before"]["pooled.embedding_bags.t0.weight"] == [90, 40]


def test_a_model_without_a_plan_cannot_be_reviewed():
    from shardwright.errors import InvalidInput

    model, sharders = model_and_sharders()
    with pytest.raises(InvalidInput, match="Module has no sharding plan"):
        made().review(model, sharders)
    with pytest.raises(InvalidInput, match="sharding_group_size"):
        made(sharding_group_size=1).review(model, sharders, made().plan(model, sharders))


def test_the_speed_benchmark_plans_with_both_planners():
    speed = importlib.import_module("benchmarks.torchrec_planning_speed")
    ours, theirs = (speed.plan_here(name, (4, 2), 1, 0) for name in ("shardwright", "torchrec"))
    assert len(ours["later_s"]) == len(theirs["gaps"]) + 1 == 1
    assert theirs["steps_ms"][0] >= ours["steps_ms"][0] / (1 + ours["gaps"][0])  # no plan is better than the bound
    by_planner = {
        ("shardwright", (4, 2)): [{"first_s": 2.0, "later_s": [0.5], "gaps": [0.03, 0.01], "steps_ms": [4.0, 9.0]}],
        ("torchrec", (4, 2)): [{"first_s": 100.0, "later_s": [], "gaps": [], "steps_ms": [5.0]}],
    }
    options = speed.parsed(["--limit", "300"])
    assert speed.row_of((4, 2), by_planner, options) == [
        "4 × 2", "100.0", "0.500", "2.00", "200", "50", "1.0%", "3.0%", "1.25",
    ]  # fmt: skip
    by_planner["torchrec", (4, 2)] = [None]
    assert speed.row_of((4, 2), by_planner, options)[1:8:3] == ["> 300.0", "> 600", "3.0%"]
    assert speed.row_of((4, 2), by_planner, options)[-1] == "–"
