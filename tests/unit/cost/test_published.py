"""The cost model of GPUs from published figures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost import cost_model_for
from shardwright.cost.features import WorkArrays
from shardwright.cost.published import CALL_MS, FACTORS, GPUS, STATE_ROWS, PublishedModel, parts
from shardwright.sharding import Shard
from shardwright.sharding.work import ShardWork, shard_work
from shardwright.task import PRESETS, AccessProfile, Table, Task, Topology

H100 = GPUS["h100"]


def work_of(rows, dim, samples, pooling, *, pooled=True, skew=0.0):
    return ShardWork(rows, dim, samples, samples * pooling, pooled, AccessProfile.zipf(rows, skew))


def test_parts_by_hand():
    work = work_of(
        100_000_000, 20, 4096, 10.0
    )  # 80 bytes of a row: three sectors; no row is looked up twice, or nearly
    forward, backward = (of_pass[0] for of_pass in parts(WorkArrays.of([work]), H100, "adam"))
    lookups, cycles = 40_960, 132 * 1.98e6
    moved = lookups * 96 / (3350e9 / 1e3)
    by_hand = [lookups / cycles, 4096 / cycles, lookups * 96 / 64 / cycles, moved, 4096 * 80 / (3350e9 / 1e3)]
    assert forward == pytest.approx(by_hand, rel=1e-3)
    gradients = lookups * 80 / 64 / cycles + 4096 * 80 / (3350e9 / 1e3)
    assert backward == pytest.approx([lookups / cycles, gradients, 2 * 3 * moved], rel=1e-3)
    time = PublishedModel("h100", "adam").encode([work])[0]
    assert time == pytest.approx([forward @ FACTORS[0], backward @ FACTORS[1]])


def test_rows_that_a_cache_holds_go_to_memory_once():
    fits, spills = (work_of(rows, 128, 65_536, 20.0) for rows in (20_000, 2_000_000))
    memory = [parts(WorkArrays.of([work]), H100, "sgd")[0][0, 3] for work in (fits, spills)]
    assert memory[0] == pytest.approx(20_000 * 512 / 3350e6, rel=1e-3)
    assert memory[1] > 0.9 * 65_536 * 20 * 512 / 3350e6


@given(st.floats(0.0, 1.5), st.floats(1.0, 100.0))
def test_skew_never_makes_a_table_dearer(skew, pooling):
    flat, skewed = (work_of(1_000_000, 64, 4096, pooling, skew=one) for one in (0.0, skew))
    model = PublishedModel("a100")
    assert (model.encode([skewed]) <= model.encode([flat]) * (1 + 1e-9)).all()


@pytest.mark.slow
@given(
    st.integers(1, 64),
    st.integers(1, 10**7),
    st.floats(0.1, 50.0),
    st.floats(0.0, 1.5),
    st.sampled_from(["fp32", "fp16"]),
    st.sampled_from(sorted(GPUS)),
    st.data(),
)
def test_no_cutting_makes_a_table_cheaper_by_the_superadditive_model(units, rows, pooling, skew, dtype, device, data):
    table = Table("t", rows, 4 * units, pooling, access=AccessProfile.zipf(rows, skew), dtype=dtype)
    task = Task([table], Topology(devices_per_host=2, device=device), 512)
    column, row = 4 * data.draw(st.integers(1, units)), data.draw(st.integers(1, rows))
    model = PublishedModel(device)
    whole = [Shard.whole(table, 0)]
    cuts = [whole, [Shard.whole(table, 0, 1)] * 2]
    if column < table.dim:
        cuts.append([Shard("t", (0, rows), part, (0,)) for part in ((0, column), (column, table.dim))])
    if row < rows:
        cuts.append([Shard("t", part, (0, table.dim), (0,)) for part in ((0, row), (row, rows))])
    least = model.superadditive.encode([shard_work(task, whole[0])]).sum(axis=0)
    for cut in cuts:
        works = [shard_work(task, shard) for shard in cut]
        assert (model.superadditive.encode(works).sum(axis=0) >= least * (1 - 1e-6)).all()
        assert (model.encode(works) >= model.superadditive.encode(works) * (1 - 1e-9)).all()


def test_states_of_optimizers_cost_what_they_weigh():
    work = work_of(10_000_000, 64, 8192, 5.0)
    backward = [
        PublishedModel("h100", name).encode([work])[0, 1] for name in ("sgd", "rowwise_adagrad", "adagrad", "adam")
    ]
    assert backward == sorted(backward)
    assert len(set(backward)) == len(STATE_ROWS)


def test_a_call_takes_its_launches():
    pricing = PublishedModel("h200").pricing
    assert pricing.convex
    assert pricing.bias == pytest.approx(CALL_MS)
    assert (pricing.devices(np.zeros((1, 2)), np.array([False])) == 0).all()


def test_a_gpu_that_is_known_by_its_bandwidth_alone():
    model = PublishedModel.of_bandwidth("cuda", 3000e9)
    assert model.name == "cuda at 3000 GB/s/published"
    work = work_of(10_000_000, 64, 8192, 5.0)
    assert (model.encode([work]) > PublishedModel("h100").encode([work])).all()
    assert model.gpu == replace(H100, bandwidth=3000e9)


@pytest.mark.parametrize("preset", PRESETS)
def test_tasks_on_every_preset_have_a_cost_model(preset):
    assert cost_model_for(Topology.preset(preset).device).encode([work_of(1000, 64, 256, 5.0)]).size
