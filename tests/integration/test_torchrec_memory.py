"""The memory account against the bytes that TorchRec's processes allocate for weights and optimizer state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardwright.sharding import Plan, Shard, memory_account, shard_work
from shardwright.sharding.memory import gradient_bytes
from shardwright.task import OPTIMIZERS, Table, Task, Topology

pytest.importorskip("torchrec", reason="needs TorchRec")

from shardwright.measure.collectives.group import GroupOptions, RankGroup

pytestmark = [pytest.mark.slow, pytest.mark.torchrec]

PROGRAM = (str(Path(__file__).with_name("torchrec_rank.py")),)
WORLD = 2
BAG, SEQUENCE = Table("bag", 20_001, 32, 2.0), Table("sequence", 20_001, 32, 2.0, pooled=False)
HALF = Table("narrow", 20_001, 32, 2.0, dtype="fp16")


def blocks(table: Table, kind: str) -> list[Shard]:
    rows, top = table.rows, -(-table.rows // 2)
    grid = [(r, c) for c in ((0, 16), (16, 32)) for r in ((0, top), (top, rows))]
    return {
        "data_parallel": [Shard.whole(table, 0, 1)],
        "table_wise": [Shard.whole(table, 1)],
        "column_wise": [
            Shard(table.name, (0, rows), (0, 16), (1,)),
            Shard(table.name, (0, rows), (16, 32), (0,)),
        ],
        "row_wise": [Shard(table.name, (0, top), (0, 32), (0,)), Shard(table.name, (top, rows), (0, 32), (1,))],
        "grid_shard": [Shard(table.name, r, c, (i % 2,)) for i, (r, c) in enumerate(grid)],
    }[kind]


@pytest.fixture(scope="module")
def group():
    with RankGroup(GroupOptions(WORLD, program=PROGRAM, timeout_s=60)) as ranks:
        yield ranks


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("table", [BAG, HALF])
def test_the_account_has_the_bytes_of_fbgemms_kernels_for_gpus(optimizer, table):
    """Without a GPU: on the meta device the kernel's tensors have sizes and no memory."""
    import torch
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    from shardwright.integrations.torchrec.models import OPTIMIZERS as TORCHRECS

    shard = Shard(table.name, (0, 10_001), (0, 16), (0,))
    kernel = SplitTableBatchedEmbeddingBagsCodegen(
        [(shard.row_count, shard.dim, EmbeddingLocation.DEVICE, ComputeDevice.CUDA)],
        weights_precision=SparseType.FP16 if table.dtype == "fp16" else SparseType.FP32,
        optimizer=TORCHRECS[optimizer],
        device=torch.device("meta"),
    )
    state = [getattr(kernel, name).nbytes for name in ("momentum1_dev", "momentum2_dev") if hasattr(kernel, name)]
    account = memory_account(Task([table], Topology(memory="1 GB"), 64, optimizer), [shard])
    assert kernel.weights_dev.nbytes == account.weights[0]
    assert account.optimizer[0] <= sum(state) <= account.optimizer[0] + 16  # of empty placeholders


def test_the_account_has_the_bytes_of_int8_rows_which_train_nowhere():
    """FBGEMM keeps a scale and a bias beside each row, and has a forward kernel only."""
    import torch
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    table = Table("narrow", 1001, 20, dtype="int8")
    kernel = SplitTableBatchedEmbeddingBagsCodegen(
        [(table.rows, table.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)], weights_precision=SparseType.INT8
    )
    assert kernel.weights_host.nbytes == table.weight_bytes
    output = kernel(torch.arange(3), torch.arange(4))
    with pytest.raises(NotImplementedError):
        output.sum().backward()


@pytest.mark.parametrize("features", [1, 3])
def test_a_row_block_holds_the_values_and_gradients_of_the_account(group, tmp_path, features):
    """Few rows, for FBGEMM's backward kernel on CPUs takes a copy of them. Gloo stages what it sends and gathers, once or twice."""
    table = Table("bag", 256, 128, [1.0] * features)
    shards = [Shard("bag", (0, 128), (0, 128), (0,)), Shard("bag", (128, 256), (0, 128), (1,))]
    plan = Plan(Task([table], Topology(1, WORLD, memory="1 GB"), 1024), shards)
    plan.save(tmp_path / "plan.json")
    peaks = group.ask({"kind": "peak", "plan": str(tmp_path / "plan.json")}, "to train a step")["peak"]
    values = 4 * table.dim * 1024 * features
    assert plan.memory.buffers.min() > 2 * values
    assert (np.array(peaks) >= 0.98 * plan.memory.buffers).all()
    assert (np.array(peaks) <= plan.memory.buffers + 2.05 * values).all()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_and_optimizer_state_are_within_a_tenth_of_the_account(group, tmp_path, optimizer):
    kinds = ("data_parallel", "table_wise", "column_wise", "row_wise", "grid_shard")
    if optimizer == "adam":
        kinds = kinds[:1]  # FBGEMM has no fused Adam for CPUs
    cases = [(BAG, kind) for kind in kinds] + [(SEQUENCE, kind) for kind in kinds[1:4]]
    cases += [(HALF, kind) for kind in kinds[1:3]]
    if optimizer == "sgd":  # torch's own optimizers keep the state of replicas in the type of the weights
        cases += [(HALF, "data_parallel")]
    for table, kind in cases:
        shards = blocks(table, kind)
        plan = Plan(Task([table], Topology(1, WORLD, memory="1 GB"), 64, optimizer), shards)
        plan.save(tmp_path / "plan.json")
        held = np.array(group.ask({"kind": "memory", "plan": str(tmp_path / "plan.json")}, "to allocate")["bytes"])
        account, case = plan.memory, (table.name, kind, optimizer)
        small = 2000  # bytes that FBGEMM keeps for itself
        np.testing.assert_allclose(held[:, 0], account.weights, rtol=0.1, atol=small, err_msg=str(case))
        np.testing.assert_allclose(held[:, 1], account.optimizer, rtol=0.1, atol=small, err_msg=str(case))
        gradients = sum(gradient_bytes(plan.task, shard_work(plan.task, shard), len(shard.devices)) for shard in shards)
        assert gradients == (table.weight_bytes if kind == "data_parallel" else 0)
        grown = account.weights + account.optimizer + gradients
        np.testing.assert_allclose(held[:, 2], grown, rtol=0.1, atol=10 * small, err_msg=f"all tensors: {case}")
