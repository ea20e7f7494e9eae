"""Requirements of FBGEMM's kernels on a plan: blocks that are narrow enough, and whole rows of quantised tables."""

import pytest

pytest.importorskip("torchrec")

import torch
from torch import nn
from torch.ao.quantization import QConfig
from torch.ao.quantization.observer import PlaceholderObserver
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.global_settings import get_propogate_device, set_propogate_device
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection
from torchrec.quant.embedding_modules import quant_prep_enable_quant_state_dict_split_scale_bias
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardwright.integrations.torchrec import problem_of, requirements

from .made import SHARDERS, bags, planner, refused, sequences, tables_of, topology

pytestmark = pytest.mark.torchrec


def widths(plan):
    return {shard.shard_sizes[1] for table in tables_of(plan).values() for shard in table.sharding_spec.shards}


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("module", [bags([(5000, 4096), (700, 2052)]), sequences((500, 900), 10_240)])
def test_no_block_is_wider_than_the_kernels_take(world, module):
    our_planner = planner(topology(world))
    plan = our_planner.plan(nn.Sequential(module), SHARDERS)
    assert max(widths(plan)) <= 2048
    assert "torchrec" in our_planner.last_plan.runs_on
    if world == 1:
        assert {table.sharding_type for table in tables_of(plan).values()} == {"column_wise"}


def test_a_table_of_2048_columns_stays_whole_and_on_cpus_any_does():
    for where, dim in ((topology(1), 2048), (topology(1, device="cpu"), 4096)):
        assert widths(planner(where).plan(bags([(500, dim)]), SHARDERS)) == {dim}


def test_releases_whose_kernels_give_zeros_get_narrower_blocks(monkeypatch):
    monkeypatch.setattr(requirements, "_release", lambda name: "1.6" if name == "fbgemm-gpu" else None)
    assert widths(planner(topology(1)).plan(bags([(5000, 2048), (900, 1024)]), SHARDERS)) == {1024}
    limits = problem_of(bags([(5000, 2048)]), SHARDERS, topology(device="cpu"), 8).task.constraints.of("t0")
    assert limits.max_columns is None


@pytest.mark.parametrize(
    "given",
    [{"sharding_types": ["table_wise"]}, {"sharding_types": ["row_wise", "data_parallel"]}, {"min_partition": 2050}],
)
def test_a_wide_table_that_may_not_be_cut_is_refused(given):
    with refused("STRICT_CONSTRAINTS", "'t0' has 4100 columns.*at most 2048"):
        planner(constraints={"t0": ParameterConstraints(**given)}).plan(bags([(5000, 4100)]), SHARDERS)


def test_a_callback_that_makes_a_block_too_wide_is_refused():
    def joined(options):
        first, *others = options[0].shards
        first.size[1] += sum(shard.size[1] for shard in others)
        options[0].shards = [first]
        return options

    with refused("INVALID_COMPUTE_KERNEL", "has a block of 4096 columns, FBGEMM's kernels take at most 2048"):
        planner(callbacks=[joined]).plan(bags([(5000, 4096)]), SHARDERS)


@pytest.fixture
def on_cpu():
    """TorchRec shards inference modules on the given device only if this is set."""
    before = get_propogate_device()
    set_propogate_device(True)
    yield
    set_propogate_device(before)


def quantised(split):
    torch.manual_seed(0)
    real = bags([(300, 16), (500, 32), (700, 48)], device=torch.device("cpu"))
    real.qconfig = QConfig(
        activation=PlaceholderObserver.with_args(dtype=torch.float32),
        weight=PlaceholderObserver.with_args(dtype=torch.qint8),
    )
    if split:
        quant_prep_enable_quant_state_dict_split_scale_bias(real)
    model = nn.Module()
    model.bags = QuantEmbeddingBagCollection.from_float(real)
    return model


def load(sharded, whole):
    """Copy weights, and scales with biases, into the shards: rows of them, or columns side by side."""
    for key, entry in sharded.items():
        start = 0
        for block in entry if isinstance(entry, list) else [entry]:
            if hasattr(block, "local_shards"):
                for shard in block.local_shards():
                    (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                    shard.tensor.copy_(whole[key][row : row + rows, column : column + columns])
                continue
            wide = block.shape[1]
            block.copy_(whole[key][:, start : start + wide])
            start += (
                wide if key.endswith(".weight") else 0
            )  # each block of columns has the scales and biases of its rows


@pytest.mark.parametrize(
    ("split", "kinds", "expected"),
    [
        (False, None, {"table_wise"}),  # theirs cuts rows here, which TorchRec then refuses to shard
        (True, ["table_wise"], {"table_wise"}),
        (True, ["row_wise"], {"row_wise"}),
        (True, ["column_wise"], {"column_wise"}),
        (True, None, None),
    ],
)
def test_quantised_modules_give_the_same_outputs_sharded(on_cpu, split, kinds, expected):
    model = quantised(split)
    given = {f"t{index}": ParameterConstraints(sharding_types=kinds) for index in range(3)} if kinds else None
    sharders = [QuantEmbeddingBagCollectionSharder()]
    our_planner = planner(topology(2, device="cpu"), constraints=given)
    plan = our_planner.plan(model, sharders)
    assert {table.compute_kernel for table in tables_of(plan).values()} == {"quant"}
    assert {table.dtype for table in our_planner.last_problem.task.tables} == {"int8"}
    assert expected is None or {table.sharding_type for table in tables_of(plan).values()} == expected
    sharded = sharders[0].shard(model.bags, plan.plan["bags"], ShardingEnv.from_local(2, 0), torch.device("cpu"))
    load(sharded.state_dict(), model.bags.state_dict())
    keys = ["f_t0", "f_t1", "f_t2"]
    batch = KeyedJaggedTensor.from_lengths_sync(keys, torch.randint(0, 300, (24,)), torch.full((12,), 2))
    ours, whole = sharded(batch).to_dict(), model.bags(batch).to_dict()
    assert max(float((ours[key] - whole[key]).abs().max()) for key in keys) == 0.0


def test_quantised_rows_that_hold_their_scales_may_not_be_cut():
    given = {"t0": ParameterConstraints(sharding_types=["row_wise", "column_wise"])}
    with refused("STRICT_CONSTRAINTS", "quantised tables stay whole"):
        planner(topology(2, device="cpu"), constraints=given).plan(
            quantised(False), [QuantEmbeddingBagCollectionSharder()]
        )


@pytest.mark.skipif(not hasattr(EmbeddingComputeKernel, "FUSED_TRITON"), reason="this TorchRec has no such kernel")
def test_the_triton_kernel_is_planned_if_offered_by_a_sharder_and_named_by_constraints():
    offering = [
        type(
            f"Triton{type(sharder).__name__}",
            (type(sharder),),
            {"compute_kernels": lambda *_: ["fused", "fused_triton"]},
        )()
        for sharder in SHARDERS
    ]
    model = nn.ModuleDict({"pooled": bags([(5000, 64)]), "sequence": sequences((500,), 32)})
    assert {table.compute_kernel for table in tables_of(planner().plan(model, offering)).values()} == {"fused"}
    named = {"t0": ParameterConstraints(compute_kernels=["fused_triton"])}
    assert tables_of(planner(constraints=named).plan(model, offering))["pooled", "t0"].compute_kernel == "fused_triton"
    with pytest.raises(PlannerError, match="no sharding type with a compute kernel that can run"):
        planner(constraints={"s0": ParameterConstraints(compute_kernels=["fused_triton"])}).plan(model, offering)
