"""Hosts of towers: chosen so that a tower has one host, and the outputs of a collection keep their order."""

import itertools

import numpy as np
import pytest

pytest.importorskip("torchrec")

from torch import nn
from torchrec.distributed.embedding_tower_sharding import EmbeddingTowerCollectionSharder, EmbeddingTowerSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.types import PlannerError
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection

import shardwright as sw
from shardwright.integrations.torchrec.hosts import chosen_hosts

from .made import GB, bags, planner, refused, tables_of, topology

pytestmark = pytest.mark.torchrec

SHARDERS = [EmbeddingTowerSharder(), EmbeddingTowerCollectionSharder()]


def tower(prefix, rows):
    return EmbeddingTower(bags([(count, 64) for count in rows], prefix), nn.Identity())


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.alone = tower("a", [100_000, 5, 40_000])
        self.many = EmbeddingTowerCollection([tower("b", [90_000] * 2), tower("c", [200_000]), tower("d", [1000] * 5)])


def hosts_by_tower(plan, per_host):
    hosts = {}
    for (_, name), part in tables_of(plan).items():
        hosts.setdefault(name[0], set()).update(rank // per_host for rank in part.ranks)
    return hosts


@pytest.mark.parametrize("kinds", [None, ["table_row_wise"], ["table_column_wise"]])
@pytest.mark.parametrize(("world", "local"), [(8, 4), (16, 2), (4, 4)])
def test_every_tower_lies_on_one_host_and_collections_keep_their_order(kinds, world, local):
    constraints = {
        f"{tower}{i}": ParameterConstraints(sharding_types=kinds) for tower in "abcd" for i in range(5) if kinds
    }
    ours = planner(topology(world, local), constraints=constraints)
    tower_hosts = hosts_by_tower(ours.plan(Towers(), SHARDERS), local)
    assert all(len(hosts) == 1 for hosts in tower_hosts.values())
    (b,), (c,), (d,) = (tower_hosts[tower] for tower in "bcd")
    assert b <= c <= d


def test_towers_spread_over_hosts_as_torchrec_spreads_them():
    model = nn.Sequential(EmbeddingTowerCollection([tower(prefix, [100_000] * 3) for prefix in "abcd"]))
    for make in (planner, lambda where: EmbeddingShardingPlanner(where, 64, stats=[])):
        tower_hosts = hosts_by_tower(make(topology(8, 2)).plan(model, SHARDERS), 2)
        assert sorted(next(iter(hosts)) for hosts in tower_hosts.values()) == [0, 1, 2, 3]


def test_options_name_towers_as_torchrecs_enumerator_does():
    ours, model = planner(topology(8, 4)), Towers()
    ours.plan(model, SHARDERS)
    listed = {
        (option.fqn, option.dependency) for option in EmbeddingEnumerator(topology(8, 4), 64).enumerate(model, SHARDERS)
    }
    assert {(option.fqn, option.dependency) for option in ours._best_plan} == listed


def test_features_and_weights_of_towers_are_read():
    model = nn.Sequential(EmbeddingTower(bags([(100, 8)], "w"), nn.Identity()))
    model[0].embedding._is_weighted = True
    ours = planner()
    ours.plan(model, SHARDERS)
    (place,) = ours.last_problem.places.values()
    assert place.table.features == ("f_w0",)
    assert ours.last_problem.task.tables[0].weighted


def test_a_tower_that_may_not_lie_on_a_host_is_refused_in_one_line():
    class RowsSharder(EmbeddingTowerSharder):
        def sharding_types(self, compute_device_type):
            return ["row_wise"]

    with refused("STRICT_CONSTRAINTS", r"'a0' is of a tower, which runs on one host.*allow table_row_wise"):
        planner(topology(4, 2)).plan(nn.Sequential(tower("a", [100])), [RowsSharder()])


def test_a_callback_that_tears_a_tower_apart_is_caught():
    def torn(options):
        options[0].shards[0].rank = 3 - options[1].shards[0].rank
        return options

    ours = planner(topology(4, 2), callbacks=[torn])
    with pytest.raises(PlannerError, match="tower '0' is planned on hosts"):
        ours.plan(nn.Sequential(tower("a", [50, 60])), SHARDERS)


@pytest.mark.parametrize("seed", range(5))
def test_hosts_of_a_collection_have_the_least_sum_of_squared_loads(seed):
    random = np.random.default_rng(seed)
    tables = [sw.Table(f"t{i}", int(random.integers(10, 2000)), 16, float(random.integers(1, 9))) for i in range(6)]
    cluster = sw.Topology(3, 1, memory=[int(size) for size in random.integers(60_000, 300_000, 3)])
    host_by_table = chosen_hosts(tables, {table.name: ("module", table.name) for table in tables}, cluster)

    def squares(hosts):
        total = 0.0
        for host, room in enumerate(cluster.memory_bytes):
            own = [table for table, its_host in zip(tables, hosts, strict=True) if its_host == host]
            full = sum(table.weight_bytes for table in own) / room
            values = sum(table.pooling for table in own) / sum(table.pooling for table in tables) * 3
            total += ((full + values) * (100 if full > 1 else 1)) ** 2
        return total

    best = min(squares(hosts) for hosts in itertools.combinations_with_replacement(range(3), 6))
    assert squares([host_by_table[table.name] for table in tables]) == pytest.approx(best)


def test_a_tower_goes_to_a_host_with_room():
    model = nn.Sequential(tower("a", [3_000_000]))
    where = topology(4, 2)
    for device in where.devices[:2]:
        device.storage.hbm = GB // 2
    assert hosts_by_tower(planner(where).plan(model, SHARDERS), 2) == {"a": {1}}
