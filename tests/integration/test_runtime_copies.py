"""ShardedEmbeddings as parts of torch programs: copies, conversions, other default types and torch's optimizers, on gloo processes."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch
from tests import runtime_pooled_cases as cases
from torch.optim.swa_utils import AveragedModel

from shardwright.errors import InvalidInput
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology

CONVERSIONS = ("half", "bfloat16", "double", partial(torch.nn.Module.to_empty, device="cpu"))


def alone():
    return cases.make_module(cases.unsharded(cases.make_plan("table_wise")))


def features_alone(step):
    return cases.joined(cases.make_plan("table_wise"), step)


def outputs(module, features):
    with torch.no_grad():
        return torch.cat([cases.values_of(output).flatten() for output in module(features).values()])


def train(module, features):
    sum(cases.values_of(output).square().sum() for output in module(features).values()).backward()


def of_copies(rank):
    """Outputs of a module, of a copy that trained on, and of the module after the same training."""
    plan = cases.make_plan("mixed")
    module = cases.make_module(plan)
    train(module, cases.features(plan, rank, 0))
    copied, probe = copy.deepcopy(module), cases.features(plan, rank, 3)
    before = outputs(module, probe)
    train(copied, cases.features(plan, rank, 2))
    after_copy, unchanged = outputs(copied, probe), outputs(module, probe)
    train(module, cases.features(plan, rank, 2))
    return before, unchanged, after_copy, outputs(module, probe)


def test_a_copy_trains_alike_and_on_its_own(ranks):
    for before, unchanged, after_copy, after in ranks.run(of_copies):
        assert torch.equal(before, unchanged)
        assert torch.equal(after_copy, after)
        assert not torch.equal(before, after)


def test_an_average_without_decay_is_the_module():
    module = alone()
    average = AveragedModel(module, avg_fn=lambda old, new, count: new)
    for step in range(3):
        train(module, features_alone(step))
        average.update_parameters(module)
    assert torch.equal(outputs(average, features_alone(0)), outputs(module, features_alone(0)))


@pytest.mark.parametrize("conversion", CONVERSIONS, ids=["half", "bfloat16", "double", "to_empty"])
def test_conversions_that_would_part_kernels_from_weights_are_refused(conversion):
    module = alone()
    with pytest.raises(InvalidInput, match="keep their type and device"):
        getattr(module, conversion)() if isinstance(conversion, str) else conversion(module)


def test_conversions_of_states_beside_fp16_rows_are_refused():
    table = Table("t", 10, 8, 1.0, dtype="fp16")
    task = Task([table], Topology(1, 1, memory="1 GB"), 4, "rowwise_adagrad")
    with pytest.raises(InvalidInput, match="keep their type and device"):
        cases.make_module(Plan(task, [Shard.whole(table, 0)])).half()


def test_an_optimizer_that_is_copied_too_trains_the_copy():
    module = cases.make_module(cases.unsharded(cases.make_plan("table_wise", "sgd")), fused=False)
    model, optimizer = copy.deepcopy((module, torch.optim.SGD(module.storage.weights, 0.1)))
    before = outputs(model, features_alone(0))
    train(model, features_alone(0))
    optimizer.step()
    assert not torch.equal(outputs(model, features_alone(0)), before)
    assert torch.equal(outputs(module, features_alone(0)), before)


def test_conversions_that_change_nothing_are_accepted():
    module = alone()
    before = outputs(module, features_alone(0))
    train(module.float().to("cpu").share_memory(), features_alone(0))
    assert not torch.equal(outputs(module, features_alone(0)), before)
    loaded = alone()
    loaded.load_state_dict(module.state_dict())
    assert torch.equal(outputs(loaded, features_alone(0)), outputs(module, features_alone(0)))


def under_default_type(rank, kind):
    """Outputs of two steps under another default type of torch."""
    plan = cases.make_plan("mixed")
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        module = cases.make_module(plan, debug=True)
        for step in range(2):
            train(module, cases.features(plan, rank, step))
        return outputs(module, cases.features(plan, rank, 3))
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_rows_travel_as_fp32_whatever_torchs_default_type(ranks, kind):
    for usual, other in zip(
        ranks.run(under_default_type, torch.float32), ranks.run(under_default_type, kind), strict=True
    ):
        assert other.dtype == torch.float32
        assert torch.equal(usual, other)


def with_optimizer(rank, make):
    """Train replicas by an optimizer of torch, with batches that touch only a part of the tables."""
    plan = cases.make_plan("mixed", "sgd")
    module = cases.make_module(plan, fused=False)
    optimizer = make(module.storage.weights)
    for step in range(4):
        features = cases.features(plan, rank, step)
        if step % 2:
            features = {name: tuple(part[:0] for part in parts) for name, parts in features.items()}
        optimizer.zero_grad()
        train(module, features)
        optimizer.step()
    module.check_replicas()


@pytest.mark.parametrize("kind", ["sparse_adam", "momentum"])
def test_torchs_optimizers_keep_replicas_equal(ranks, kind):
    ranks.run(
        with_optimizer,
        {"sparse_adam": torch.optim.SparseAdam, "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9)}[kind],
    )


def constructed(rank, options):
    try:
        cases.make_module(cases.make_plan("data_parallel"), **options[rank % len(options)])
    except InvalidInput as error:
        return str(error)
    return "no error"


def of_rank(table, ids, rank=0):
    return np.full((ids.size, table.dim), rank, dtype=np.float32)


def test_replicas_must_begin_alike_and_ranks_agree_on_flags(ranks):
    for error in ranks.run(constructed, [{"initial": partial(of_rank, rank=rank)} for rank in range(cases.RANKS)]):
        assert "differ from those on rank 0; let initial give all ranks the same" in error
    for error in ranks.run(constructed, [{"fused": True}, {"fused": False}]):
        assert "ranks [1, 3] have a plan or options other than rank 0" in error
    for error in ranks.run(constructed, [{"initial": 3}, {"initial": 1.7}]):
        assert "initial is 1.7, must be a function" in error
    assert set(ranks.run(constructed, [{"initial": np.int64(3)}])) == {"no error"}


def test_weights_of_lookups_that_require_gradients_are_refused():
    features = features_alone(0)
    features["weighted"][2].requires_grad_()
    with pytest.raises(InvalidInput, match="feature 'weighted': its weights require gradients"):
        alone()(features)


def test_samples_that_share_bags_are_refused():
    torchrec = pytest.importorskip("torchrec", reason="KeyedJaggedTensors are TorchRec's")
    features = torchrec.KeyedJaggedTensor(
        keys=["plain"],
        values=torch.arange(3),
        lengths=torch.tensor([1, 2]),
        stride_per_key_per_rank=[[2]],
        inverse_indices=(["plain"], torch.tensor([[0, 1, 0]])),
    )
    with pytest.raises(InvalidInput, match="inverse_indices"):
        alone()(features)


def dropped(rank):
    """Outputs after a batch that was sent ahead was dropped."""
    plan = cases.make_plan("mixed")
    module = cases.make_module(plan)
    module.prefetch(cases.features(plan, rank, 1))
    module.prefetch(None)
    module.prefetch(ahead := cases.features(plan, rank, 2))
    with pytest.raises(InvalidInput, match="a batch was sent ahead"):
        copy.deepcopy(module)
    return outputs(module, ahead), outputs(cases.make_module(plan), ahead)


def test_a_batch_sent_ahead_can_be_dropped(ranks):
    for after, fresh in ranks.run(dropped):
        assert torch.equal(after, fresh)


def test_outputs_may_be_changed_in_place():
    module, other = alone(), alone()
    for its, change in ((module, torch.relu_), (other, torch.relu)):
        results = [change(cases.values_of(output)) for output in its(features_alone(0)).values()]
        sum(result.square().sum() for result in results).backward()
    assert torch.equal(outputs(module, features_alone(0)), outputs(other, features_alone(0)))
