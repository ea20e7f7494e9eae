"""ShardedEmbeddings with pooled tables on real gloo processes, 2 hosts × 2 devices, against unsharded tables."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import numpy as np
import torch
from tests import runtime_pooled_cases as cases
from tests.runtime_ranks import started

from shardwright.cost.flows import traffic_by_kind
from shardwright.sharding import Plan, Shard
from shardwright.task import Table, Task, Topology
from shardwright.task.topology import Exchange

STEPS = 4


def trained(rank, plan, options):
    """The outputs of some steps, and the rank's rows after them."""
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


def compare(plan, by_rank, same, options):
    """Compare with unsharded tables; `same(name)` says whether a table's bits must be equal."""
    outputs, whole = unsharded(plan, options)
    rtol = 2e-3 if any(table.dtype == "fp16" for table in plan.task.tables) else 2e-5

    def check(one, other, name):
        if same(name):
            assert torch.equal(one, other), name
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)

    for step in range(STEPS):
        for name, table in cases.named(plan):
            check(torch.cat([own[step][name] for own, _ in by_rank]), outputs[step][name], table.name)
    rows = 0
    for _, pieces in by_rank:
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_narrow_types_on_the_wire_round_what_travels(ranks, dtype):
    plan = cases.make_plan("mixed", "sgd", exchange=Exchange(values=dtype, gradients=dtype))
    (outputs, _), *_ = ranks.run(trained, plan, {})
    exact, _ = ranks.run(trained, cases.make_plan("mixed", "sgd"), {})[0]
    for name, rows in outputs[0].items():
        torch.testing.assert_close(rows, exact[0][name], rtol=0.02, atol=0.02)
    assert any(not torch.equal(rows, exact[0][name]) for name, rows in outputs[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["columns", "mixed"])
def test_half_precision_tables_train_like_unsharded_ones(ranks, kind):
    plan = cases.make_plan(kind, dtype="fp16")
    compare(plan, ranks.run(trained, plan, {}), lambda name: False, {})


def without_fbgemm(rank, plan):
    from shardwright.runtime import kernels

    known, kernels.find_spec = kernels.find_spec, lambda name: None
    try:
        return trained(rank, plan, {})
    finally:
        kernels.find_spec = known


@pytest.mark.slow
def test_torch_runs_plans_without_fbgemm(ranks):
    plan = cases.make_plan("mixed")
    compare(plan, ranks.run(without_fbgemm, plan), lambda name: False, {})


def sent(rank, plan):
    module = cases.make_module(plan)
    cases.step_of(module, rank, 0, {})
    return {key[:2] for key in module.traffic.sent if key[2] != "self"}


def test_all_tables_travel_in_one_exchange(ranks):
    """Counts and ids go, sums and rows come, gradients go: lengths ride on the ids."""
    answers = ranks.run(sent, cases.make_plan("columns", exchange=Exchange("device", "touched")))
    wanted = {("forward", "counts"), ("forward", "ids"), ("forward", "values"), ("backward", "gradients")}
    assert set().union(*answers) == wanted


def metered(rank, plan, samples):
    """Bytes that a rank sends in a step of full bags, by kind."""
    from shardwright.runtime import ShardedEmbeddings

    module, rng = ShardedEmbeddings(plan), np.random.default_rng(rank)
    given = {}
    for table in plan.task.tables:
        ids = torch.from_numpy(rng.integers(table.rows, size=samples * int(table.pooling)))
        lengths = torch.full((samples,), int(table.pooling))
        given[table.name] = (ids, lengths, torch.ones(ids.numel())) if table.weighted else (ids, lengths)
    torch.autograd.backward([output.sum() for output in module(given).values()])
    return {kind: module.traffic.total(kind=kind) for kind in ("ids", "values", "gradients")}


def test_a_step_sends_the_bytes_that_shared_collectives_predict(ranks):
    samples = 200
    tables = [Table("plain", 1000, 8, 3.0), Table("weighted", 500, 4, 2.0, weighted=True), Table("rows", 4000, 16, 1.0)]
    task = Task(tables, Topology(2, 2), 4 * samples, exchange=Exchange(collectives="shared"))
    cut = [Shard("rows", (1000 * rank, 1000 * rank + 1000), (0, 16), (rank,)) for rank in range(4)]
    halves = [Shard("plain", (0, 1000), columns, (rank,)) for rank, columns in enumerate([(0, 4), (4, 8)])]
    plan = Plan(task, [*halves, Shard.whole(tables[1], 3), *cut])
    sent = ranks.run(metered, plan, samples)
    expected = {kind: flow.sent.sum() for (_, kind), flow in traffic_by_kind(task, plan.shards).items()}
    for kind in ("ids", "values", "gradients"):
        assert sum(of_rank[kind] for of_rank in sent) == pytest.approx(expected[kind], rel=0.02)


def keyed(rank, plan, spoil):
    """A step on a KeyedJaggedTensor, whose keys may be wrong."""
    import torchrec

    from shardwright.errors import ShardwrightError

    module, given = cases.make_module(plan), cases.features(plan, rank, 0)
    names = list(given)
    parts = [torch.cat([given[name][place] for name in names]) for place in (0, 1)]
    weights = torch.cat(
        [given[name][2] if len(given[name]) > 2 else torch.ones(given[name][0].numel()) for name in names]
    )
    if spoil and rank == 1:
        names[0] = names[1]
    try:
        out = module(torchrec.KeyedJaggedTensor(names, parts[0], weights=weights, lengths=parts[1]))
    except ShardwrightError as error:
        return str(error)
    plain = module(given)
    assert isinstance(out["steps"], torchrec.JaggedTensor)
    return all(
        torch.equal(cases.values_of(plain[name]), out[name] if name != "steps" else out[name].values())
        for name in plain
    )


@pytest.mark.torchrec
def test_keyed_jagged_tensors_give_the_same_and_no_key_twice(ranks):
    pytest.importorskip("torchrec", reason="makes TorchRec's features")
    plan = cases.make_plan("mixed")
    assert all(answer is True for answer in ranks.run(keyed, plan, False))
    for error in ranks.run(keyed, plan, True):
        assert error == "rank 1: features have 'left' twice; give each feature once"


def wire_error(rank, plan):
    from shardwright.errors import InvalidInput

    try:
        cases.make_module(plan)
    except InvalidInput as error:
        return str(error)
    return "no error"


def test_types_that_do_not_travel_here_are_refused(ranks):
    for error in ranks.run(wire_error, cases.make_plan("grid", exchange=Exchange(values="int8"))):
        assert "exchange sends values as int8; this module sends fp32, fp16 and bf16" in error


SPOILED = {
    "too large": "rank 1: table 'plain' of 101 rows: 1 ids are out of range, the first is 500; ids must be from 0 to 100",
    "missing": "rank 1: features have no 'left'; every feature of the module needs ids and lengths, empty ones if it has no lookups",
    "lengths": "rank 1: feature 'right': its lengths add up to",
    "no weights": "rank 1: feature 'weighted': features must be a tuple of tensors (ids, lengths, weights)",
    "none": "no error",
}


def spoiled_step(rank, plan, how):
    """The error of a step in which rank 1 has bad input, and whether the next step is unaffected."""
    from shardwright.errors import InvalidInput

    module, given = cases.make_module(plan), cases.features(plan, rank, 0)
    spoiled = dict(given)
    if rank == 1 and how == "too large":
        spoiled["plain"] = (
            torch.cat([given["plain"][0], torch.tensor([500])]),
            torch.cat([given["plain"][1], torch.ones(1, dtype=torch.int64)]),
        )
    elif rank == 1 and how == "missing":
        del spoiled["left"]
    elif rank == 1 and how == "lengths":
        spoiled["right"] = given["right"][0], given["right"][1] + 1
    elif rank == 1 and how == "no weights":
        spoiled["weighted"] = given["weighted"][:2]
    error = "no error"
    try:
        module(spoiled)
    except InvalidInput as problem:
        error = str(problem)
    again = {name: cases.values_of(output).detach() for name, output in module(given).items()}
    return error, again


@pytest.mark.parametrize("exchange", [EXCHANGES[0], EXCHANGES[2]], ids=lambda e: e.deduplicate)
@pytest.mark.parametrize("how", SPOILED)
def test_bad_input_of_one_rank_is_an_error_on_all(ranks, how, exchange):
    outcomes = ranks.run(spoiled_step, cases.make_plan("grid", exchange=exchange), how)
    wanted = ranks.run(spoiled_step, cases.make_plan("grid", exchange=exchange), "none")
    for (error, outputs), (_, good) in zip(outcomes, wanted, strict=True):
        assert error.startswith(SPOILED[how])
        assert all(torch.equal(outputs[name], good[name]) for name in good)


def other_plans(rank, plans):
    from shardwright.errors import InvalidInput

    try:
        cases.make_module(plans[rank % len(plans)])
    except InvalidInput as problem:
        return str(problem)
    return "no error"


def test_ranks_must_have_one_plan_for_as_many_ranks(ranks):
    one, other = cases.make_plan("columns"), cases.make_plan("grid")
    for error in ranks.run(other_plans, [one, other]):
        assert "ranks [1, 3] have a plan or options other than rank 0; give all ranks the same plan file" in error
    for error in ranks.run(other_plans, [cases.unsharded(one)]):
        assert "the process group has 4 ranks, the plan's topology 1 hosts × 1 = 1 devices; start one process" in error


def other_features(rank, plan):
    from shardwright.errors import InvalidInput

    try:
        cases.make_module(plan, features={"shared": ["left", "right"] if rank < 3 else ["right", "left"]})
    except InvalidInput as problem:
        return str(problem)
    return "no error"


def test_ranks_must_name_features_alike(ranks):
    for error in ranks.run(other_features, cases.make_plan("columns")):
        assert (
            error
            == "ranks [3] have names of features other than rank 0; give all ranks the same features=, in the same order"
        )


def lost(rank, plan):
    """The errors of the other ranks if rank 2 ends within a step."""
    import os

    from shardwright.errors import ShardwrightError

    module = cases.make_module(plan, timeout=15.0)  # the first step loads kernels, on busy machines for seconds
    cases.step_of(module, rank, 0, {})
    if rank == 2:
        os._exit(1)
    try:
        for step in (1, 2):
            cases.step_of(module, rank, step, {})
    except ShardwrightError as problem:
        return str(problem)
    return "no error"


@pytest.mark.slow
def test_a_rank_that_dies_is_an_error_on_the_others():
    with started(cases.RANKS, timeout_s=20.0) as group:
        outcomes = group.outcomes(lost, cases.make_plan("mixed"), wait_s=40.0)
    for rank, (good, text) in enumerate(outcomes):
        assert (good, text) == (False, "died") if rank == 2 else "failed: another rank died, timed out, or" in text
