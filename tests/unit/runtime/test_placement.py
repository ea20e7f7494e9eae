import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright._engine import runs_by_place, sort_by_place
from shardwright.runtime.lookup import Router
from shardwright.runtime.placement import ALONE, Placement
from shardwright.runtime.ranking import Ranking, chosen_maps
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.shard import RowLayout
from tests.runtime_plans import runnable_plans


def placement_of(plan):
    return Placement.of(plan, [table.name for table in plan.task.tables])


def codes_of_ranges(placement, holders):
    """The code of each range's first row at one of its holders."""
    places = placement.group_of_range * placement.plan.task.topology.devices + holders
    return (places << placement.slot_bits) + placement.slots(np.arange(holders.size), holders)


def stored(placement, rank):
    """By group, the key in each slot of a rank."""
    rows = placement.rows_on(rank)
    keys = [np.full(count, -1) for count in rows]
    held = placement.held_by(rank)
    for number, slot in zip(held.tolist(), placement.slots(held, rank).tolist(), strict=True):
        count = int(placement.ranges[1, number])
        part = keys[int(placement.group_of_range[number])][slot : slot + count]
        assert (part == -1).all()  # no slot is given twice
        part[:] = placement.keys(number, 0, count)
    return keys


@given(runnable_plans())
def test_every_rank_holds_the_rows_of_its_shards_once(plan):
    placement = placement_of(plan)
    for rank in range(plan.task.topology.devices):
        held = stored(placement, rank)
        wanted = [[] for _ in held]
        for shard in plan.by_device[rank]:
            table = next(index for index, part in enumerate(placement.parts) if part.table.name == shard.table)
            layout = RowLayout.of(plan.by_table[shard.table])
            rows = layout.rows_of(layout.ranges.index(shard.rows))
            wanted[placement.group_of[table]] += (rows + placement.base[table]).tolist()
        assert [sorted(keys.tolist()) for keys in held] == [sorted(keys) for keys in wanted]
    most = max(placement.rows_on(rank).max() for rank in range(plan.task.topology.devices))
    assert placement.slot_bits == int(most).bit_length()


@given(runnable_plans())
def test_replicated_rows_are_the_last_of_a_rank_by_way_of_exchange(plan):
    placement = placement_of(plan)
    for rank in range(plan.task.topology.devices):
        held = placement.held_by(rank)
        ways = placement.exchanges[placement.ranges[0, held]]
        for group, alone in enumerate(placement.rows_on(rank, ALONE).tolist()):
            mine = (placement.group_of_range[held] == group) & (placement.ranges[1, held] > 0)
            slots = placement.slots(held[mine], rank)
            assert (slots[ways[mine] == ALONE] < alone).all()
            assert (slots[ways[mine] != ALONE] >= alone).all()


@given(runnable_plans())
def test_owners_hold_what_they_own_and_share_evenly(plan):
    placement = placement_of(plan)
    rows = {}
    for number, owner in enumerate(placement.owner.tolist()):
        shard = placement.shards[placement.ranges[0, number]]
        assert owner in shard.devices
        rows.setdefault(shard, dict.fromkeys(shard.devices, 0))[owner] += int(placement.ranges[1, number])
    for shard, by_owner in rows.items():
        assert sum(by_owner.values()) == shard.row_count
        if shard.tier is None:
            assert max(by_owner.values()) - min(by_owner.values()) <= 1


@pytest.mark.slow
@given(runnable_plans(), st.integers(0, 2**32 - 1))
def test_codes_lead_to_the_nearest_holder_and_the_slot_of_the_row(plan, seed):
    placement = placement_of(plan)
    topology = plan.task.topology
    keys = np.random.default_rng(seed).integers(0, placement.base[-1], 50)
    held = [stored(placement, rank) for rank in range(topology.devices)]
    bits = placement.slot_bits
    for rank in range(topology.devices):
        holders = placement.nearest(rank)
        first = codes_of_ranges(placement, holders)
        found = Router(placement, first, torch.device("cpu")).codes(torch.from_numpy(keys)).numpy()
        group, member = np.divmod(found >> bits, topology.devices)
        for key, its_group, holder, slot in zip(keys, group, member, found & ((1 << bits) - 1), strict=True):
            assert held[holder][its_group][slot] == key
            have = [other for other in range(topology.devices) if key in held[other][its_group]]
            near = [other for other in have if topology.host_of(other) == topology.host_of(rank)]
            assert holder == rank if rank in have else holder in (near or have)


@given(runnable_plans(), st.integers(0, 2**32 - 1))
def test_ids_become_keys_as_their_tables_rank_map_says(plan, seed):
    placement = placement_of(plan)
    rng = np.random.default_rng(seed)
    given_maps = {
        table.name: RankMap(table.rows, rng.permutation(table.rows)[: rng.integers(0, table.rows + 1)])
        for table in plan.task.tables
    }
    maps = chosen_maps(placement, given_maps)
    ranking = Ranking(placement, maps, torch.device("cpu"))
    tables = [part.table for part in placement.parts]
    ids = [rng.integers(0, table.rows, rng.integers(0, 20)) for table in tables]
    counts = torch.tensor([one.size for one in ids])
    keys, wrong = ranking.keys(torch.from_numpy(np.concatenate(ids)), counts)
    assert not wrong
    by_table = keys.split(counts.tolist())
    for index, (table, own) in enumerate(zip(tables, ids, strict=True)):
        hotness = plan.by_table[table.name][0].row_order == "hotness"
        ranks = given_maps[table.name].ranks(own) if hotness else own
        assert (by_table[index].numpy() == ranks + placement.base[index]).all()
        assert (ranking.ids(placement, index, by_table[index].numpy()) == own).all()


@pytest.mark.slow
@given(runnable_plans(), st.integers(0, 2**32 - 1))
def test_compiled_and_vector_code_find_the_same_codes(plan, seed):
    placement = placement_of(plan)
    rng = np.random.default_rng(seed)
    maps = {
        table.name: RankMap(table.rows, rng.permutation(table.rows)[: table.rows // 2]) for table in plan.task.tables
    }
    ranking = Ranking(placement, chosen_maps(placement, maps), torch.device("cpu"))
    rows = [part.table.rows for part in placement.parts]
    ids = [rng.integers(-(index == 0 and seed % 3 == 0), count, 15) for index, count in enumerate(rows)]
    counts = [one.size for one in ids]
    keys, wrong = ranking.keys(torch.from_numpy(np.concatenate(ids)), torch.tensor(counts))
    for rank in range(plan.task.topology.devices):
        holders = placement.nearest(rank)
        router = Router(placement, codes_of_ranges(placement, holders), torch.device("cpu"))
        found, found_wrong = router.find(ranking, torch.from_numpy(np.concatenate(ids)), counts)
        assert torch.equal(found, router.codes(keys))
        assert found_wrong == bool(wrong)


@given(st.lists(st.integers(0, 200), max_size=50), st.integers(0, 6))
def test_sorting_by_place_is_a_stable_sort(values, bits):
    codes = np.array(values, dtype=np.int64)
    counts = np.zeros(201, dtype=np.int64)
    order, inverse, questions = (np.empty_like(codes) for _ in range(3))
    sort_by_place(codes, bits, counts, order, inverse, questions)
    wanted = np.argsort(codes >> bits, kind="stable")
    assert order.tolist() == wanted.tolist()
    assert inverse[order].tolist() == list(range(codes.size))
    assert questions.tolist() == (codes[wanted] % 2**bits).tolist()
    assert counts.tolist() == np.bincount(codes >> bits, minlength=201).tolist()


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2)), max_size=50), st.integers(0, 6), st.booleans())
def test_lookups_of_a_bag_at_one_place_are_neighbours(lookups, bits, with_order):
    codes = np.array([code for code, _ in lookups], dtype=np.int64)
    bags = np.cumsum([step for _, step in lookups], dtype=np.int64)
    counts, answers = np.zeros((2, 201), dtype=np.int64)
    questions, heads = np.empty_like(codes), np.empty_like(codes)
    order = np.empty_like(codes)[: codes.size * with_order]
    first_bags = np.arange(201, dtype=np.int64)
    runs_by_place(codes, bags, first_bags, bits, counts, answers, questions, heads, order)
    wanted = np.argsort(codes >> bits, kind="stable")
    runs = list(zip((codes[wanted] >> bits).tolist(), bags[wanted].tolist(), strict=True))
    first = [index == 0 or runs[index - 1] != run for index, run in enumerate(runs)]
    assert questions.tolist() == [
        int(code % 2**bits) * 2 + mark for code, mark in zip(codes[wanted], first, strict=True)
    ]
    assert heads[: sum(first)].tolist() == [bag - place for (place, bag), mark in zip(runs, first, strict=True) if mark]
    assert counts.tolist() == np.bincount(codes >> bits, minlength=201).tolist()
    of_runs = [place for (place, _), mark in zip(runs, first, strict=True) if mark]
    assert answers.tolist() == np.bincount(np.array(of_runs, dtype=np.int64), minlength=201).tolist()
    assert not with_order or order.tolist() == wanted.tolist()


def test_ids_out_of_range_are_found_and_taken_for_row_0():
    placement = placement_of(runnable_plan())
    ranking = Ranking(placement, chosen_maps(placement, None), torch.device("cpu"))
    rows = placement.parts[0].table.rows
    keys, wrong = ranking.keys(torch.tensor([0, rows]), torch.tensor([2] + [0] * (len(placement.parts) - 1)))
    assert wrong
    assert keys.tolist() == [0, 0]


def runnable_plan():
    from shardwright.task.topology import Exchange
    from tests.runtime_cases import make_plan

    return make_plan("row_wise", Exchange())
