"""ShardedEmbeddings with pooled tables on real gloo processes, 2 hosts × 2 devices, against unsharded tables."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch
from tests import runtime_pooled_cases as cases
from tests.runtime_ranks import started

from shardwright.task.topology import Exchange

STEPS = 4


@pytest.fixture(scope="module")
def ranks():
    with started(cases.RANKS) as group:
        yield group


def trained(rank, plan, options):
    """The outputs of some steps, and what the rank holds after them."""
    module = cases.make_module(plan, debug=True, **options)
    outputs = [cases.step_of(module, rank, step, cases.outputs_before(plan, rank, step)) for step in range(STEPS)]
    return outputs, cases.held(module)


def unsharded(plan, options):
    """The same of one process with whole tables and the samples of all ranks."""
    module = cases.make_module(cases.unsharded(plan), **options)
    outputs = [cases.step_of(module, None, step, {}) for step in range(STEPS)]
    whole = {}
    for name, columns, ids, matrices in cases.held(module):
        assert torch.equal(ids, torch.arange(ids.numel()))
        whole[name, columns] = matrices
    return outputs, whole


def compare(plan, found, same, options):
    """Compare with unsharded tables; `same(name)` says whether a table's bits must be equal."""
    outputs, whole = unsharded(plan, options)
    rtol = 2e-3 if any(table.dtype == "fp16" for table in plan.task.tables) else 2e-5

    def check(one, other, name):
        if same(name):
            assert torch.equal(one, other), name
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)

    for step in range(STEPS):
        for name, table in cases.named(plan):
            check(torch.cat([own[step][name] for own, _ in found]), outputs[step][name], table.name)
    rows = 0
    for _, pieces in found:
        for name, columns, ids, matrices in pieces:
            rows += ids.numel()
            for kind, matrix in matrices.items():
                check(matrix, whole[name, columns][kind][ids], name)
    assert rows > 0


OPTIMIZERS = ("sgd", "rowwise_adagrad", "adagrad", "adam")
EXCHANGES = (Exchange(), Exchange("device", "touched"), Exchange("host", "cheaper"))


@pytest.mark.parametrize("kind", ["columns", "mixed"])
def test_plans_train_like_unsharded_tables(ranks, kind):
    plan = cases.make_plan(kind)
    compare(plan, ranks.run(trained, plan, {}), lambda name: kind == "columns" and name != "shared", {})


@pytest.mark.slow
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda e: e.deduplicate)
@pytest.mark.parametrize("kind", cases.KINDS)
def test_every_plan_and_exchange_trains_like_unsharded_tables(ranks, kind, exchange):
    optimizer = OPTIMIZERS[(cases.KINDS.index(kind) + EXCHANGES.index(exchange)) % 4]
    plan = cases.make_plan(kind, optimizer, exchange=exchange)
    whole = kind in ("table_wise", "columns")
    compare(plan, ranks.run(trained, plan, {}), lambda name: whole and name not in ("shared", "steps"), {})


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["rows", "grid", "bricks"])
def test_exact_rows_give_the_bits_of_unsharded_tables(ranks, kind, optimizer):
    plan = cases.make_plan(kind, optimizer)
    alone = {name for name, shards in plan.by_table.items() if all(len(shard.devices) == 1 for shard in shards)}
    assert alone > {"plain"}
    options = {"exact": True}
    compare(plan, ranks.run(trained, plan, options), lambda name: name in alone - {"shared"}, options)
