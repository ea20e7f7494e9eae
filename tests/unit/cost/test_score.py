from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright.cost import compute_ms, cost_model_for, device_ms, score
from shardwright.cost.model import CostModel
from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.measure.backend import kernel_groups
from shardwright.sharding import Shard, memory_account, shard_work
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

MODEL: CostModel = SimpleCostModel()
ONE = shard_work(task_of(1, 1), Shard.whole(task_of(1, 1).tables[0], 0))
MIXED = [
    replace(ONE, samples=samples, dtype=dtype, dim=dim, pooled=pooled)
    for samples in (64, 256)
    for dtype in ("fp32", "fp16")
    for dim in (16, 64)
    for pooled in (True, False)
]


def test_the_parts_of_a_score_add_up_as_defined():
    plan = sw.plan(task_of(10, 4), cost_model=MODEL)
    cost = plan.cost
    phases = np.array(
        [[d.forward_ms, d.forward_communication_ms, d.backward_communication_ms, d.backward_ms] for d in cost.devices]
    )
    assert cost.step_ms == pytest.approx(phases.max(axis=0).sum())
    assert cost.embedding_cost_ms == pytest.approx(phases.sum(axis=1).max())
    assert cost.embedding_cost_ms <= cost.step_ms
    assert [d.memory_bytes for d in cost.devices] == memory_account(plan.task, plan.shards).total.tolist()


def test_shards_of_one_call_are_priced_together_not_one_by_one():
    task = task_of(6, 1)
    shards = [Shard.whole(table, 0) for table in task.tables if table.dtype == "fp32"]
    together = compute_ms(task, shards, MODEL)[0]
    latents = MODEL.encode([shard_work(task, shard) for shard in shards])
    np.testing.assert_allclose(together, MODEL.pricing.price(latents.sum(axis=0)))
    assert not np.isclose(together.sum(), MODEL.pricing.price(latents).sum())


@given(st.lists(st.sampled_from(MIXED), max_size=12), st.randoms(use_true_random=False))
def test_a_device_is_the_sum_of_its_fused_calls(works, random):
    """The same groups as the kernels of a device; shards in any order."""
    groups = kernel_groups(works)
    encoded = [MODEL.encode(group.works).sum(axis=0) for group in groups]
    expected = sum((MODEL.pricing.price(sums) for sums in encoded), np.zeros(2))
    np.testing.assert_allclose(device_ms(MODEL, works), expected)
    random.shuffle(works)
    np.testing.assert_allclose(device_ms(MODEL, works), expected)


def test_a_replicated_table_pays_for_a_call_of_its_own_on_every_device():
    task = task_of(6, 2)
    shards = [Shard.whole(table, index % 2) for index, table in enumerate(task.tables)]
    replicated = [*shards[:-1], Shard.whole(task.tables[-1], 0, 1)]
    works = [shard_work(task, shard) for shard in replicated]
    before, after = compute_ms(task, shards, MODEL), compute_ms(task, replicated, MODEL)
    alone = device_ms(MODEL, works[-1:])
    np.testing.assert_allclose(after[0], before[0] + alone)
    assert (alone > MODEL.pricing.price(np.zeros(3))).all()


def test_an_empty_device_costs_nothing():
    task = task_of(1, 3)
    cost = score(task, [Shard.whole(task.tables[0], 1)], MODEL)
    assert cost.devices[0].compute_ms == cost.devices[2].compute_ms == 0
    assert cost.devices[1].compute_ms > 0


def test_replicas_split_the_batch():
    task = task_of(1, 4)
    table = task.tables[0]
    one = score(task, [Shard.whole(table, 0)], MODEL).devices[0].compute_ms
    shared = score(task, [Shard.whole(table, 0, 1, 2, 3)], MODEL)
    assert {device.compute_ms for device in shared.devices} == {shared.devices[0].compute_ms}
    assert shared.devices[0].compute_ms < one


def test_nan_predictions_stop_with_the_models_name():
    @dataclass(frozen=True)
    class Broken(SimpleCostModel):
        name: str = "broken"

        @property
        def pricing(self):
            return replace(super().pricing, bias=np.full(2, np.nan))

    with pytest.raises(ShardwrightError, match="broken predicted NaN"):
        sw.plan(task_of(3, 2), strategy="size", cost_model=Broken())


def test_a_device_type_nobody_knows_is_refused_with_the_remedy():
    with pytest.raises(InvalidInput, match="no cost model for device 'abacus'.*shardwright train"):
        cost_model_for("abacus")
    assert cost_model_for("a100").name == "a100/published"
