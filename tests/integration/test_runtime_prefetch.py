"""ShardedEmbeddings whose ids are sent ahead, on real gloo processes, 2 hosts × 2 devices."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch
from tests import runtime_pooled_cases as cases
from tests.runtime_ranks import started

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.task.topology import Exchange

STEPS = 4
EXCHANGES = (Exchange(), Exchange("device", "touched"), Exchange("host", "cheaper"))


def message(action, *args):
    try:
        action(*args)
    except ShardwrightError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def trained(rank, plans, ahead):
    """Outputs, rows and sent bytes of modules that train in turns, each with its next batch ahead or not."""
    modules = [cases.make_module(plan, debug=True) for plan in plans]
    batches = [[cases.features(plan, rank, step) for step in range(STEPS)] for plan in plans]
    outputs = []
    for step in range(STEPS):
        results = [module(its[step]) for module, its in zip(modules, batches, strict=True)]
        if ahead and step + 1 < STEPS:
            for module, its in zip(modules, batches, strict=True):
                module.prefetch(its[step + 1])
        tensors = [cases.values_of(output) for result in results for output in result.values()]
        sum((tensor * cases.factor(tensor, 0)).sum() for tensor in tensors).backward()
        outputs += [tensor.detach().clone() for tensor in tensors]
    rows = [matrix for module in modules for *_, matrices in cases.held(module) for matrix in matrices.values()]
    return outputs + rows, [module.traffic.sent for module in modules]


def same(ranks, plans):
    """Whether ids sent ahead change no bit and no byte."""
    pairs = zip(ranks.run(trained, plans, True), ranks.run(trained, plans, False), strict=True)
    return all(
        sent == sent_later and all(torch.equal(*both) for both in zip(tensors, later, strict=True))
        for (tensors, sent), (later, sent_later) in pairs
    )


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.deduplicate)
def test_ids_sent_ahead_change_no_bit_and_no_byte(ranks, exchange):
    assert same(ranks, [cases.make_plan("mixed", exchange=exchange)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["data_parallel", "grid", "rail", "tiered"])
def test_ids_sent_ahead_change_nothing_whatever_the_plan(ranks, kind):
    assert same(ranks, [cases.make_plan(kind, exchange=exchange) for exchange in EXCHANGES[1:]])


def test_modules_that_share_connections_send_ahead_in_turns(ranks):
    assert same(ranks, [cases.make_plan("mixed", exchange=exchange) for exchange in (EXCHANGES[2], EXCHANGES[0])])


def other_batches(rank, plan):
    """Whether a batch ahead and another one before it give what they should, and the error of a second batch ahead."""
    module, batches = cases.make_module(plan), [cases.features(plan, rank, step) for step in range(2)]
    expected = [module(batch) for batch in batches]
    module.prefetch(batches[0])
    error = message(module.prefetch, batches[1])
    with torch.no_grad():
        second = module(batches[1])
    outputs = zip(expected, (module(batches[0]), second), strict=True)
    return error, all(
        torch.equal(*map(cases.values_of, (own[name], again[name]))) for own, again in outputs for name in own
    )


def test_a_batch_ahead_waits_while_the_module_runs_others(ranks):
    for error, good in ranks.run(other_batches, cases.make_plan("mixed")):
        assert error.startswith("InvalidInput: prefetch: another batch was sent ahead before; first call the module")
        assert good


def test_modules_run_in_no_grad_but_not_in_inference_mode():
    plan = cases.unsharded(cases.make_plan("mixed"))
    module, given = cases.make_module(plan), cases.joined(plan, 0)
    good = module(given)
    with torch.no_grad():
        module.prefetch(given)
        again = module(given)
    assert all(torch.equal(cases.values_of(good[name]), cases.values_of(again[name])) for name in good)
    with torch.inference_mode(), pytest.raises(InvalidInput, match="call the module in torch.no_grad"):
        module(given)


def bad_ids(rank, plan):
    """The error of a batch ahead in which rank 1 has an id out of range, and whether the next step is unaffected."""
    module, given = cases.make_module(plan), cases.features(plan, rank, 0)
    good = module(given)
    spoiled = dict(given)
    if rank == 1:
        ids, lengths = given["plain"]
        spoiled["plain"] = torch.cat([ids, torch.tensor([500])]), torch.cat([lengths, torch.ones(1, dtype=torch.int64)])
    module.prefetch(spoiled)
    error = message(module, spoiled)
    again = module(given)
    return error, all(torch.equal(cases.values_of(good[name]), cases.values_of(again[name])) for name in good)


def test_bad_ids_sent_ahead_are_an_error_of_the_call_on_all_ranks(ranks):
    for error, good in ranks.run(bad_ids, cases.make_plan("mixed")):
        assert error.startswith("InvalidInput: rank 1: table 'plain' of 101 rows: 1 ids are out of range")
        assert good


def lost(rank, plan):
    """The error of a call whose ids were sent ahead, after rank 2 has ended."""
    import os

    module, given = cases.make_module(plan, timeout=15.0), cases.features(plan, rank, 0)
    module(given)
    if rank == 2:
        os._exit(1)
    module.prefetch(given)
    return message(module, given)


@pytest.mark.slow
def test_a_rank_that_ends_before_it_sends_is_an_error_of_the_call():
    with started(cases.RANKS, timeout_s=20.0) as group:
        outcomes = group.outcomes(lost, cases.make_plan("mixed"), wait_s=40.0)
    for rank, (good, text) in enumerate(outcomes):
        wanted = "died" if rank == 2 else "failed: another rank died, timed out, or"
        assert (good, wanted in text) == (rank != 2, True), text


def test_one_process_needs_no_group():
    plan = cases.unsharded(cases.make_plan("mixed"))
    module, given = cases.make_module(plan), cases.joined(plan, 0)
    good = module(given)
    module.prefetch(given)
    again = module(given)
    assert all(torch.equal(cases.values_of(good[name]), cases.values_of(again[name])) for name in good)
    module.prefetch(given)
    with pytest.raises(InvalidInput, match="sent ahead before"):
        module.prefetch(given)
