import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidInput
from shardwright.sharding import Plan, Shard, dealt_ranges
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.rank_map_files import load_rank_maps, rank_map_bytes, save_rank_maps
from shardwright.task import Table, Task, Topology


@given(st.integers(1, 50), st.randoms(use_true_random=False), st.data())
def test_ids_and_ranks_are_a_bijection(rows: int, random: object, data: st.DataObject) -> None:
    ids = list(range(rows))
    random.shuffle(ids)  # type: ignore[attr-defined]
    hottest = ids[: data.draw(st.integers(0, rows))]
    ranked = np.array(hottest + sorted(set(ids) - set(hottest)))
    ranks = RankMap(rows, np.array(hottest, dtype=np.int64))
    assert ranks.ids(np.arange(rows)).tolist() == ranked.tolist()
    assert ranks.ranks(ranked).tolist() == list(range(rows))


ROWS = 4000
HOT, WARM = 10, 100


def tiered(table: Table, devices: int = 4, per_host: int = 2) -> list[Shard]:
    """Hot rows everywhere, warm rows once a host, cold rows once."""
    columns = (0, table.dim)
    warm = [
        Shard(table.name, rows, columns, tuple(range(i, devices, per_host)), "hotness", (HOT, WARM))
        for i, rows in enumerate(dealt_ranges((HOT, WARM), per_host))
    ]
    cold = [
        Shard(table.name, rows, columns, (i,), "hotness", (WARM, table.rows))
        for i, rows in enumerate(dealt_ranges((WARM, table.rows), devices))
    ]
    return [Shard(table.name, (0, HOT), columns, tuple(range(devices)), "hotness"), *warm, *cold]


@pytest.fixture
def plan() -> Plan:
    history, item = Table("history", ROWS, 8, 20.0, pooled=False), Table("item", 50, 8)
    task = Task((history, item), Topology(hosts=2, devices_per_host=2, memory="64 MB"), batch_size=64)
    return Plan(task, [*tiered(history), Shard.whole(item, 0)])


@pytest.fixture
def ranks() -> RankMap:
    return RankMap(ROWS, np.random.default_rng(3).permutation(ROWS))


@pytest.fixture
def saved(plan, ranks, tmp_path):
    """A plan file with rank maps."""
    path = tmp_path / "plan.json"
    plan.with_rank_maps({"history": ranks}).save(path)
    return path


@pytest.mark.parametrize("rows", [1, 256, 257, 65_537, 2**32 + 1])
def test_rank_maps_survive_a_file_in_the_smallest_type(rows, tmp_path):
    maps = {
        "a/b": RankMap(rows, np.array([rows - 1])),
        "__metadata__": RankMap.identity(rows),
        "ü": RankMap.identity(3),
    }
    path = tmp_path / "ranks.safetensors"
    save_rank_maps(maps, path)
    assert load_rank_maps(path) == maps
    assert list(load_rank_maps(path)) == list(maps)
    assert rank_map_bytes(maps) == path.read_bytes() == rank_map_bytes(dict(maps))
    size = {1: 1, 256: 1, 257: 2, 65_537: 4, 2**32 + 1: 8}[rows]
    assert len(rank_map_bytes({"x": RankMap(rows, np.array([0]))})) % 8 == size % 8


def test_maps_differ_by_rows_and_ids():
    one = RankMap(5, np.array([3, 1]))
    assert one == RankMap(5, np.array([3, 1]))
    assert hash(one) == hash(RankMap(5, np.array([3, 1])))
    assert one != RankMap(6, np.array([3, 1]))
    assert one != RankMap(5, np.array([1, 3]))
    assert one != "a map"


def test_a_trimmed_map_keeps_the_first_ranks(ranks):
    trimmed = ranks.trimmed(7)
    assert trimmed.ranks(ranks.hottest[:7]).tolist() == list(range(7))
    assert trimmed.hottest.size == 7
    assert ranks.trimmed(ROWS) is ranks


def test_a_plan_keeps_maps_of_tables_by_hotness_and_only_the_ranks_it_distinguishes(plan, ranks):
    item = RankMap(50, np.arange(50))
    mapped = plan.with_rank_maps({"history": ranks, "item": item, "stranger": item})
    assert list(mapped.rank_maps) == ["history"]
    kept = mapped.rank_maps["history"].hottest
    assert WARM <= kept.size < ROWS
    assert np.array_equal(kept, ranks.hottest[: kept.size])
    assert not plan.rank_maps


def test_only_ranks_above_the_block_of_coldest_rows_count(ranks):
    table = Table("history", ROWS, 8, 20.0, pooled=False)
    task = Task((table,), Topology(hosts=1, devices_per_host=2, memory="64 MB"), batch_size=64)
    shards = [
        Shard("history", (0, HOT), (0, 8), (0, 1), "hotness"),
        Shard("history", (HOT, ROWS), (0, 8), (1,), "hotness"),
    ]
    kept = Plan(task, shards).with_rank_maps({"history": ranks}).rank_maps["history"]
    assert kept.hottest.tolist() == ranks.hottest[:HOT].tolist()


def test_a_plan_with_maps_survives_its_two_files(plan, ranks, saved):
    again = Plan.load(saved)
    assert again == plan.with_rank_maps({"history": ranks})
    assert again != plan
    document = json.loads(saved.read_text())
    content = saved.with_name("plan.ranks.safetensors").read_bytes()
    assert document["rank_maps"] == {"file": "plan.ranks.safetensors", "sha256": hashlib.sha256(content).hexdigest()}


def test_a_plan_with_maps_has_a_name_that_is_text(plan, ranks, tmp_path):
    with pytest.raises(InvalidInput, match="its name is not UTF-8, and a plan with rank maps holds it as text"):
        plan.with_rank_maps({"history": ranks}).save(tmp_path / "a\udcff.json")
    assert not list(tmp_path.iterdir())


def test_a_plan_without_maps_is_one_file_without_the_field(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert "rank_maps" not in json.loads((tmp_path / "plan.json").read_text())


def test_a_missing_damaged_or_other_file_beside_the_plan_is_refused(plan, saved):
    beside = saved.with_name("plan.ranks.safetensors")
    content = beside.read_bytes()
    beside.write_bytes(content[:-1])
    with pytest.raises(InvalidInput, match="put back the file that was saved with the plan"):
        Plan.load(saved)
    beside.write_bytes(rank_map_bytes({"history": RankMap.identity(ROWS)}))
    with pytest.raises(InvalidInput, match="its SHA-256 is"):
        Plan.load(saved)
    beside.unlink()
    with pytest.raises(InvalidInput, match=r"plan\.ranks\.safetensors: there is no such file of rank maps; name"):
        Plan.load(saved)


@pytest.mark.parametrize("name", ["../plan.ranks.safetensors", "plan.json", "a\0.ranks.safetensors", ""])
def test_a_plan_names_no_file_elsewhere(saved, name):
    document = json.loads(saved.read_text())
    document["rank_maps"]["file"] = name
    saved.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=r"rank_maps\.file: Expected `str` matching .*ranks"):
        Plan.load(saved)


@pytest.mark.parametrize(
    ("maps", "says"),
    [
        ({"history": RankMap.identity(5)}, "is of 5 rows, the table has 4000"),
        ({"item": RankMap.identity(50)}, "a rank map for table 'item', which the plan does not order by hotness"),
    ],
)
def test_maps_that_do_not_fit_the_plan_are_refused_on_loading(saved, maps, says):
    content = rank_map_bytes(maps)
    saved.with_name("plan.ranks.safetensors").write_bytes(content)
    document = json.loads(saved.read_text())
    document["rank_maps"]["sha256"] = hashlib.sha256(content).hexdigest()
    saved.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=says) as error:
        Plan.load(saved)
    assert "plan.json: rank_maps" in str(error.value)


def test_a_file_too_large_is_refused_unread(tmp_path):
    path = tmp_path / "sparse.safetensors"
    with path.open("wb") as file:
        file.truncate((4 << 30) + 1)
    with pytest.raises(InvalidInput, match="is larger than 4294967296"):
        load_rank_maps(path)
