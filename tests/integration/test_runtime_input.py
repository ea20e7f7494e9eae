"""ShardedEmbeddings with bad input, empty input, and ranks that die: an error on all ranks, and no hang."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import timedelta

import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import numpy as np
import torch
from tests.runtime_cases import Reference, batch, features_of, make_module, make_plan, one_step, rank_maps, whole_tables
from tests.runtime_ranks import started

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.sharding.plan import Plan
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology
from shardwright.task.topology import Exchange

STRAIGHT, PROXIES = Exchange("none", "whole"), Exchange("host", "touched")


def message(action):
    try:
        action()
    except ShardwrightError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


class Breaking(dict):
    def __getitem__(self, key):
        raise OSError(f"{key} is on a disk that is gone")


def spoil(features, how):
    ids, lengths = features["b"]
    if how == "too large":
        features["b"] = torch.cat([ids, torch.tensor([101, 500])]), torch.cat([lengths, torch.tensor([2])])
    elif how == "missing":
        del features["b"]
    elif how == "type":
        features["b"] = ids.float(), lengths
    elif how == "no features":
        return 7
    elif how == "breaks":
        return Breaking(features)
    return features


MESSAGES = {
    "too large": "rank 1: table 'b' of 101 rows: 2 ids are out of range, the first is 101; ids must be from 0 to 100",
    "missing": "rank 1: features have no 'b'",
    "type": "rank 1: feature 'b': ids are torch.float32",
    "no features": "rank 1: features are a int",
    "breaks": "rank 1: features cannot be read (OSError: a is on a disk that is gone)",
}


def bad_step(rank, plan, how):
    """The error of a step in which rank 1 has bad input, and whether the next step is unaffected."""
    module = make_module(plan, rank_maps())
    features = features_of(plan, rank, 0)
    error = message(lambda: module(spoil(features, how) if rank == 1 else features))
    out = one_step(module, rank, 0)
    weights = whole_tables(plan)
    good = all(
        torch.equal(out[name].values, weights[name][batch(rank, 0, name, len(weights[name]))[0]]) for name in weights
    )
    return error, good


@pytest.mark.parametrize("how", MESSAGES)
@pytest.mark.parametrize("exchange", [STRAIGHT, PROXIES], ids=["straight", "proxies"])
def test_bad_input_of_one_rank_is_an_error_on_all(ranks, exchange, how):
    for error, good in ranks.run(bad_step, make_plan("tiered", exchange), how):
        assert error.startswith(f"InvalidInput: {MESSAGES[how]}")
        assert good


def empty_step(rank, plan, samples):
    module = make_module(plan, rank_maps())
    nothing = torch.zeros(0, dtype=torch.int64)
    out = module({table.name: (nothing, torch.zeros(samples, dtype=torch.int64)) for table in plan.task.tables})
    sum(rows.values.sum() for rows in out.values()).backward()
    return {name: tuple(rows.values.shape) for name, rows in out.items()}


@pytest.mark.parametrize("samples", [0, 3])
@pytest.mark.parametrize("exchange", [STRAIGHT, PROXIES], ids=["straight", "proxies"])
def test_steps_without_any_lookup(ranks, exchange, samples):
    for shapes in ranks.run(empty_step, make_plan("tiered", exchange, "adam"), samples):
        assert shapes == {"a": (0, 8), "b": (0, 4), "c": (0, 8), "d": (0, 4)}


def construction_error(rank, plans, maps):
    return message(lambda: make_module(plans[rank % len(plans)], maps[rank % len(maps)]))


def test_ranks_must_have_the_same_plan_and_rank_maps(ranks):
    one, other = make_plan("tiered", STRAIGHT), make_plan("row_wise", STRAIGHT)
    for error in ranks.run(construction_error, [one, one, other, one], [None]):
        assert "ranks [2] have a plan or options other than rank 0" in error
    for error in ranks.run(construction_error, [one], [rank_maps(1), rank_maps(1), rank_maps(1), rank_maps(2)]):
        assert "ranks [3] have rank maps other than rank 0" in error


def test_the_plan_must_be_for_as_many_ranks(ranks):
    table = Table("t", 10, 4, 1.0, False)
    plan = Plan(Task([table], Topology(1, 3, memory="1 GB"), 4), [Shard.whole(table, 0)])
    for error in ranks.run(construction_error, [plan], [None]):
        assert "4 ranks, the plan's topology 1 hosts × 3 = 3 devices" in error


def differing_replicas(rank, plan):
    module = make_module(plan, None)
    if rank == 3:
        with torch.no_grad():
            module.storage.weights[1].view(-1)[-1] += 1
    return message(lambda: one_step(module, rank, 0))


def test_debug_finds_replicas_that_differ(ranks):
    for error in ranks.run(differing_replicas, make_plan("data_parallel", STRAIGHT)):
        assert "on ranks [3] differ from those on rank 0" in error


def sparse_gradients(rank, plan, maps):
    """Not fused: the summed gradients of held rows, of two backward passes, lie in .grad."""
    module = make_module(plan, maps, fused=False)
    outs = [module(features_of(plan, rank, step)) for step in range(2)]  # two forward passes before the backward passes
    from tests.runtime_cases import weight_of

    for step, out in enumerate(outs):
        sum((rows.values * weight_of(rows.values, name, rank + step)).sum() for name, rows in out.items()).backward()
    reference = Reference(plan, whole_tables(plan))
    wanted = [reference.gradients(step) for step in range(2)]
    for cut in module.storage.cuts():
        name = module.placement.parts[cut.part].table.name
        keys = module.placement.keys(cut.number, cut.start, cut.stop)
        ids = torch.from_numpy(module.ranking.ids(module.placement, cut.part, keys))
        gradient = module.storage.weights[cut.group].grad.to_dense()[cut.slots]
        total = sum(dense[name][0][ids] for dense in wanted).float()
        torch.testing.assert_close(gradient, total, rtol=1e-5, atol=1e-5)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [STRAIGHT, PROXIES], ids=["straight", "proxies"])
def test_unfused_gradients_are_left_in_grad(ranks, exchange):
    assert all(ranks.run(sparse_gradients, make_plan("tiered", exchange), rank_maps()))


def evaluate(rank, plan):
    module = make_module(plan, None)
    with torch.no_grad():
        out = module(features_of(plan, rank, 0))
    return out["a"].values.requires_grad


def test_looking_up_without_gradients(ranks):
    assert ranks.run(evaluate, make_plan("tiered", PROXIES)) == [False] * 4


ONE = Topology(1, 1, memory="1 GB")
FOUR = Topology(2, 2, memory="1 GB")
TABLE = Table("t", 10, 8, 1.0, False)


def plan_of(table, shards, topology=ONE):
    return Plan(Task([table], topology, 4, "sgd"), shards)


WHOLE = plan_of(TABLE, [Shard.whole(TABLE, 0)])


@pytest.mark.parametrize(
    ("plan", "options", "text"),
    [
        (plan_of(replace(TABLE, pooling=[1.0, 1.0]), [Shard.whole(TABLE, 0)]), {}, "table 't' serves 2 features"),
        (plan_of(replace(TABLE, dtype="int8"), [Shard.whole(TABLE, 0)]), {}, "table 't' has int8 weights"),
        (WHOLE, {"tables": ["x"]}, "table 'x' is not in the plan"),
        (WHOLE, {"tables": []}, "name at least one table"),
        (
            plan_of(TABLE, [Shard("t", (0, 10), (0, 8), (0,), "hotness")]),
            {"rank_maps": {"t": RankMap.identity(9)}},
            "its rank map is of 9",
        ),
        (WHOLE, {"rank_maps": {"x": RankMap.identity(9)}}, "rank map for table 'x'"),
        (plan_of(TABLE, [Shard.whole(TABLE, 0)], FOUR), {}, "the process group has 1 ranks"),
        ("plan.json", {}, "plan is a str, must be a shardwright.Plan"),
        (WHOLE, {"device": "cuda:99"}, "device is cuda:99, must be one that"),
        (WHOLE, {"device": "gpu"}, "device is gpu"),
        (WHOLE, {"device": "meta"}, "device is meta"),
        (WHOLE, {"eps": 0.0}, "eps is 0.0"),
        (WHOLE, {"learning_rate": float("nan")}, "learning_rate is nan"),
        (WHOLE, {"betas": (0.9, 1.0)}, "betas are"),
        (WHOLE, {"timeout": 0}, "timeout is 0"),
        (WHOLE, {"timeout": float("nan")}, "timeout is nan"),
        (WHOLE, {"timeout": timedelta(seconds=-1)}, "timeout is -1"),
        (
            WHOLE,
            {"initial": lambda table, ids: np.zeros((ids.size, 3), np.float32)},
            "table 't': initial gives weights of shape",
        ),
    ],
)
def test_plans_that_cannot_run_are_refused(plan, options, text):
    from shardwright.runtime import ShardedEmbeddings

    with pytest.raises(InvalidInput, match=text):
        ShardedEmbeddings(plan, **options)


def subgroup_step(rank, plan):
    """A module on two of the four ranks."""
    import torch.distributed as dist

    pair = dist.new_group([1, 3])
    if rank not in (1, 3):
        return None
    module = make_module(plan, None, process_group=pair, initial=3)
    out = module({"t": (torch.tensor([rank, 9, 0]), torch.tensor([3]))})
    out["t"].values.sum().backward()
    return module.rank, tuple(out["t"].values.shape)


def test_a_process_group_that_is_a_part_of_the_job(ranks):
    shards = [Shard("t", (0, 5), (0, 8), (0,)), Shard("t", (5, 10), (0, 8), (1,))]
    plan = plan_of(TABLE, shards, Topology(2, 1, memory="1 GB"))
    assert ranks.run(subgroup_step, plan) == [None, (0, (3, 8)), None, (1, (3, 8))]


def one_wrong_option(rank, plan):
    return message(lambda: make_module(plan, None, eps=0.0 if rank == 1 else 1e-8))


def test_a_wrong_option_on_one_rank_is_an_error_on_all(ranks):
    for error in ranks.run(one_wrong_option, make_plan("tiered", STRAIGHT)):
        assert error.startswith("InvalidInput: rank 1: eps is 0.0")


def one_wrong_map(rank, plan):
    maps = {"a": RankMap.identity(36)} if rank == 2 else None
    return message(lambda: make_module(plan, maps))


def test_a_rank_map_of_the_wrong_length_on_one_rank_is_an_error_on_all(ranks):
    for error in ranks.run(one_wrong_map, make_plan("tiered", STRAIGHT)):
        assert error.startswith("InvalidInput: rank 2: table 'a' has 37 rows, but its rank map is of 36")


def test_replicas_on_an_irregular_set_of_devices_are_refused():
    from shardwright.runtime.placement import Placement

    with pytest.raises(InvalidInput, match="the same local ranks of each of their hosts"):
        Placement.of(plan_of(TABLE, [Shard.whole(TABLE, 0, 1, 2)], FOUR), ["t"])


def die_in_a_step(rank, plan, how):
    """The errors of the other ranks if rank 3 ends, or sleeps, after one step."""
    module = make_module(plan, None, timeout=2.0)
    one_step(module, rank, 0)
    if rank == 3 and how == "dies":
        os._exit(1)
    if rank == 3:
        time.sleep(5)
        return "slept"
    return "; ".join(message(lambda: [one_step(module, rank, step) for step in (1, 2)]) for _ in range(2))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dies", "sleeps"])
def test_a_rank_that_is_lost_is_an_error_on_the_others(how):
    with started(4, timeout_s=20.0) as group:
        outcomes = group.outcomes(die_in_a_step, make_plan("tiered", STRAIGHT), how, wait_s=30.0)
    for good, text in outcomes[:3]:
        assert good
        assert text.count("ShardwrightError: exchanging ") == 2  # the step, and one that is tried after it
        assert text.count("failed: another rank died, timed out, or called another collective") == 2
    assert outcomes[3] == ((False, "died") if how == "dies" else (True, "slept"))
