from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.cost.choice import cost_model_for
from shardwright.cost.correction import CorrectedModel, Terms
from shardwright.cost.features import WorkArrays
from shardwright.cost.files import load_model, model_header, save_model, telling_name
from shardwright.cost.model import ComputeModel
from shardwright.cost.published import PublishedModel
from shardwright.cost.score import device_ms, score
from shardwright.errors import InvalidInput
from shardwright.modelling.correction import corrected, held_out_error, with_cut_price
from shardwright.search import plan
from shardwright.search.bound import lower_bound
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

TASK = task_of(12, 3)
WORKS = [shard_work(TASK, Shard.whole(table, 0)) for table in TASK.tables]


def random_correction(seed: int, spread: float) -> CorrectedModel:
    rng = np.random.default_rng(seed)
    terms = Terms.of(TASK, SimpleCostModel())
    count = len(terms.spread)
    weights = spread * rng.standard_normal((2, count))
    return CorrectedModel(SimpleCostModel(), terms, weights, rng.uniform(0.5, 2, 2), np.zeros((2, count, count)))


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 0.5]))
def test_the_bound_of_a_corrected_model_is_below_every_plan(seed, spread):
    model = random_correction(seed, spread)
    bound = lower_bound(TASK, model)
    assert bound is not None
    for strategy in ("random", "size", "greedy"):
        found = plan(TASK, strategy=strategy, cost_model=SimpleCostModel(), seed=seed % 7)
        assert bound.ms <= score(TASK, found.shards, model).step_ms * (1 + 1e-9)


def test_a_corrected_model_is_searched_with_a_certificate():
    model = random_correction(3, 0.2)
    certified_plan = plan(TASK, strategy="certified", cost_model=model, seed=0)
    assert 0 < certified_plan.bound_ms <= certified_plan.cost.step_ms * (1 + 1e-9)


def test_columns_and_lists_of_shards_are_encoded_alike():
    base = cost_model_for("cpu")
    assert isinstance(base, ComputeModel)
    model = with_cut_price(base, TASK, 0.1)
    assert np.allclose(model.encode(WORKS), model.encode_arrays(WorkArrays.of(WORKS)))
    assert model.encode([]).shape == (0, model.encode(WORKS).shape[1])


def test_a_price_of_cuts_is_paid_for_every_shard():
    base = SimpleCostModel()
    model = with_cut_price(base, TASK, 0.1)
    assert model.cut_price > 0
    one_call = [work for work in WORKS if work.pooled and work.dtype == "fp32"][:2]
    for works in (WORKS[:1], WORKS[:2], one_call):
        more = sum(device_ms(model, works)) - sum(device_ms(base, works))
        assert more == pytest.approx(len(works) * model.cut_price)


def test_blocks_of_a_table_are_corrected_as_the_table_is():
    base, table = SimpleCostModel(), TASK.tables[0]
    terms = Terms.of(TASK, base)
    half = Shard(table.name, (0, table.rows // 2), (0, table.dim), (0,))
    works = WorkArrays.of([WORKS[0], shard_work(TASK, half)])
    whole, block = terms.columns(works, np.ones((2, 2)))[:, : len(terms.centres), 0]
    assert whole.max() == pytest.approx(1)
    np.testing.assert_allclose(block, whole, rtol=1e-3, atol=1e-6)


def test_measured_devices_teach_the_factors_of_tables_and_of_the_machine():
    base, rng = SimpleCostModel(), np.random.default_rng(0)
    pooled = [work for work in WORKS if work.pooled and work.dtype == "fp32"]
    factors = rng.uniform(0.8, 1.2, len(pooled))

    def truth(places):
        alone = np.array([device_ms(base, [pooled[place]]) for place in places])
        fused = np.array(device_ms(base, [pooled[place] for place in places]))
        return 1.5 * (fused + ((factors[places] - 1)[:, None] * alone).sum(axis=0))

    sets = [rng.choice(len(pooled), 4, replace=False) for _ in range(60)]
    devices = [[pooled[place] for place in places] for places in sets]
    times = np.array([truth(places) for places in sets])
    model = corrected(base, TASK, devices[:40], times[:40], 0.005 * times[:40])

    def error(factor, model):
        predicted = np.array([device_ms(model, works) for works in devices[40:]])
        return float(np.abs(factor * predicted / times[40:] - 1).mean())

    assert model.scale == pytest.approx([1.5, 1.5], rel=0.1)
    assert error(1.0, model) < 0.5 * error(1.5, base)
    assert not np.allclose(model.drawn(rng).weights, model.weights)


def test_few_noisy_devices_leave_the_model_nearly_as_it_was():
    base = SimpleCostModel()
    times = 1.2 * np.array([device_ms(base, WORKS[:4])])
    model = corrected(base, TASK, [WORKS[:4]], times, times)
    assert model.scale == pytest.approx([1.2, 1.2])
    assert np.abs(model.weights).max() < 1e-6


def test_a_correction_never_makes_a_time_negative():
    terms = Terms.of(TASK, SimpleCostModel())
    weights = np.full((2, len(terms.spread)), -5.0)
    model = CorrectedModel(SimpleCostModel(), terms, weights, np.ones(2), np.zeros((2, 1, 1)))
    for count in (1, 3, len(WORKS)):
        assert min(device_ms(model, WORKS[:count])) >= 0


@pytest.mark.parametrize(
    "base", [cost_model_for("cpu"), PublishedModel("h200"), with_cut_price(cost_model_for("cpu"), TASK, 0.2)]
)
def test_a_corrected_model_survives_a_file_whatever_its_base(tmp_path, base):
    rng = np.random.default_rng(0)
    made = with_cut_price(base, TASK, 0.1)
    made = replace(
        made, weights=made.weights + 0.1 * rng.standard_normal(made.weights.shape), scale=np.array([1.5, 0.7])
    )
    made = replace(made, metadata={"name": telling_name(made), "tuned": "from here"})
    path = tmp_path / "model.safetensors"
    save_model(made, path)
    loaded = load_model(path)
    assert loaded.name == made.name == model_header(path)["name"]
    assert loaded.metadata == made.metadata
    assert loaded.base.name == base.name
    np.testing.assert_allclose(device_ms(loaded, WORKS), device_ms(made, WORKS), rtol=1e-5)
    assert loaded.drawn(rng) is loaded


def test_a_model_that_no_file_can_hold_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be saved"):
        save_model(with_cut_price(SimpleCostModel(), TASK, 0.1), tmp_path / "model.safetensors")


def test_the_error_of_a_correction_is_of_devices_that_it_has_not_seen():
    base, rng = cost_model_for("cpu"), np.random.default_rng(0)
    devices = [[WORKS[place] for place in rng.choice(len(WORKS), 4, replace=False)] for _ in range(16)]
    times = 1.7 * np.array([device_ms(base, works) for works in devices])
    noise = 0.01 * times
    assert held_out_error(base, TASK, devices, times, noise) < 0.02
    assert held_out_error(base, TASK, devices[:7], times[:7], noise[:7]) is None
