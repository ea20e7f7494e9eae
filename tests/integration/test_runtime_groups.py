"""Process groups of ShardedEmbeddings: shared by modules, gone with the default group, and made by all ranks or by none."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch
import torch.distributed as dist
from tests.runtime_cases import HOSTS, RANKS, make_module, make_plan, one_step, rank_maps
from tests.runtime_ranks import started

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology
from shardwright.task.topology import Exchange

EXCHANGE = Exchange("host", "touched")


def groups_of(module):
    return [members.group for members in (module.ranks.world, module.ranks.host, module.ranks.rail)]


def threads():
    return len(list(Path("/proc/self/task").iterdir()))


def one_after_another(rank, plan, modules):
    """Groups and threads of the process after each of some modules, made and dropped."""
    counts = []
    for _ in range(modules):
        one_step(make_module(plan, rank_maps()), rank, 0)
        gc.collect()
        counts.append((dist.get_pg_count(), threads()))
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, HOSTS, RANKS])
def test_modules_made_one_after_another_share_groups(ranks, hosts):
    plan = make_plan("tiered", EXCHANGE, hosts=hosts)
    for counts in ranks.run(one_after_another, plan, 3):
        assert counts == counts[:1] * 3


def two_at_once(rank, plan):
    """Two modules in one step, and one with another timeout."""
    first, second, third = make_module(plan, None), make_module(plan, None), make_module(plan, None, timeout=7.0)
    same = [one is two for one, two in zip(groups_of(first), groups_of(second), strict=True)]
    other = [one is not two for one, two in zip(groups_of(first), groups_of(third), strict=True)]
    one_step(first, rank, 0)
    one_step(second, rank, 0)
    weights = zip(first.storage.weights, second.storage.weights, strict=True)
    return same, other, all(torch.equal(one, two) for one, two in weights)


def test_modules_that_live_side_by_side_share_groups(ranks):
    for same, other, equal in ranks.run(two_at_once, make_plan("tiered", EXCHANGE)):
        assert same == other == [True] * 3
        assert equal


def differing(rank, plans, timeouts):
    try:
        make_module(plans[rank], None, timeout=timeouts[rank])
    except InvalidInput as error:
        return str(error)
    return "no error"


def test_ranks_with_other_hosts_or_timeouts_are_refused(ranks):
    two, four = make_plan("row_wise", EXCHANGE), make_plan("row_wise", EXCHANGE, hosts=4)
    for error in ranks.run(differing, [two, two, four, two], [20.0] * 4):
        assert error.startswith(
            "ranks [2] have other hosts or another timeout than rank 0: 4 hosts × 1 devices and 20 s"
        )
    for error in ranks.run(differing, [two] * 4, [20.0, 20.0, 20.0, 2.5]):
        assert error.startswith(
            "ranks [3] have other hosts or another timeout than rank 0: 2 hosts × 2 devices and 2.5 s"
        )


PAIR = Plan(
    Task([Table("t", 10, 8, 1.0, False)], Topology(2, 1, memory="1 GB"), 4, "sgd"),
    [Shard("t", (0, 5), (0, 8), (0,)), Shard("t", (5, 10), (0, 8), (1,))],
)


def pair_after_pair(rank, plan):
    """Process groups of two ranks, each destroyed after a module has run on it."""
    counts = []
    for _ in range(3):
        pair = dist.new_group([1, 3])
        if rank in (1, 3):
            module = make_module(plan, None, process_group=pair, initial=3)
            module({"t": (torch.tensor([rank, 9, 0]), torch.tensor([3]))})["t"].values.sum().backward()
            counts.append(len(dist.distributed_c10d._world.pg_names))
            dist.destroy_process_group(pair)
    return counts


def test_modules_on_process_groups_of_the_same_ranks_share_groups(ranks):
    _, one, _, three = ranks.run(pair_after_pair, PAIR)
    assert one == three == one[:1] * 3


def lose_one_exchange(rank, plan):
    """The error of a step that one rank leaves out, and whether later modules work."""
    module = make_module(plan, None, timeout=2.0)
    error = None
    if rank != RANKS - 1:
        try:
            one_step(module, rank, 0)
        except ShardwrightError as problem:
            error = str(problem)
    fresh = make_module(plan, None, timeout=2.0)
    one_step(fresh, rank, 0)
    return error, [one is not two for one, two in zip(groups_of(module), groups_of(fresh), strict=True)]


@pytest.mark.slow
def test_no_module_gets_groups_on_which_an_exchange_has_failed():
    with started(RANKS) as group:
        outcomes = group.run(lose_one_exchange, make_plan("tiered", EXCHANGE))
    assert [other for _, other in outcomes] == [[True] * 3] * RANKS
    assert [error is None for error, _ in outcomes] == [False] * 3 + [True]


def start_again(rank, plan, folder):
    """Modules of three jobs of one process after another, the default group destroyed in between."""
    counts = []
    for job in range(3):
        if job:
            dist.init_process_group("gloo", init_method=f"file://{folder}/{job}", rank=rank, world_size=RANKS)
        one_step(make_module(plan, None), rank, 0)
        one_step(make_module(plan, None), rank, 0)
        counts.append((dist.get_pg_count(), threads()))
        dist.destroy_process_group()
    gc.collect()
    return counts, threads()


@pytest.mark.slow
def test_groups_do_not_outlive_the_default_group(tmp_path):
    with started(RANKS) as group:
        for counts, after in group.run(start_again, make_plan("tiered", EXCHANGE), str(tmp_path)):
            assert counts[1] == counts[2]
            assert after < counts[2][1]
