from itertools import pairwise

import numpy as np

from shardwright.cost.features import FEATURES, PARTS, SCALES, WorkArrays, features, parts, scales
from shardwright.sharding import Shard, shard_work
from shardwright.sharding.shard import even_cuts
from shardwright.task import AccessProfile, Table, Task, Topology
from shardwright.testing.tasks import task_of


def works():
    task = task_of(12, 2)
    return [shard_work(task, Shard.whole(table, 0)) for table in task.tables]


def test_features_are_finite_and_named():
    x = features(WorkArrays.of(works()))
    assert x.shape == (12, len(FEATURES))
    assert np.isfinite(x).all()
    assert len(set(FEATURES)) == len(FEATURES)


def test_reuse_shares_sum_to_one():
    x = features(WorkArrays.of(works()))
    for kind in ("row_share", "lookup_share"):
        chosen = [i for i, name in enumerate(FEATURES) if name.startswith(kind)]
        assert len(chosen) == 17
        np.testing.assert_allclose(x[:, chosen].sum(axis=1), 1, rtol=1e-6)


def test_column_halves_share_their_lookups_and_halve_what_depends_on_columns():
    task = task_of(1, 2)
    table = task.tables[0]
    whole = shard_work(task, Shard.whole(table, 0))
    half = shard_work(task, Shard(table.name, (0, table.rows), (0, table.dim // 2), (0,)))
    both = scales(WorkArrays.of([whole, half]))
    by_columns = [SCALES.index(name) for name in ("outputs", "looked_up", "distinct_dim")]
    same = [SCALES.index(name) for name in ("samples", "lookups", "distinct")]
    np.testing.assert_allclose(both[1, by_columns] * 2, both[0, by_columns])
    np.testing.assert_allclose(both[1, same], both[0, same])


def test_a_row_block_has_its_tables_features_and_sizes_of_its_own():
    task = task_of(4, 2)
    for table in task.tables:
        cuts = even_cuts(table.rows, 3)
        blocks = [shard_work(task, Shard(table.name, rows, (0, table.dim), (0,))) for rows in pairwise(cuts)]
        whole, parts = (WorkArrays.of(some) for some in ([shard_work(task, Shard.whole(table, 0))], blocks))
        np.testing.assert_allclose(features(parts), np.repeat(features(whole), 3, axis=0), rtol=1e-6, atol=1e-9)
        assert (scales(parts).sum(axis=0) >= scales(whole)[0] * (1 - 1e-6)).all()


def test_the_parts_of_row_blocks_add_up_to_their_tables():
    """All but those of every block: itself, its bags and, if rows are summed, its outputs."""
    task = task_of(14, 2)
    fixed = np.array([name.endswith(("_shard", "_bags", "pooled_outputs")) for name in PARTS])
    for table in task.tables:
        cuts = even_cuts(table.rows, min(3, table.rows))
        blocks = [shard_work(task, Shard(table.name, rows, (0, table.dim), (0,))) for rows in pairwise(cuts)]
        whole, sums = (
            parts(WorkArrays.of(some), 1e5).sum(axis=0) for some in ([shard_work(task, Shard.whole(table, 0))], blocks)
        )
        np.testing.assert_allclose(sums[~fixed], whole[~fixed], rtol=1e-6, atol=1e-15)
        np.testing.assert_allclose(sums[fixed], len(blocks) * whole[fixed])


def test_the_parts_of_a_table_by_hand():
    """2,000 rows of 64 bytes, looked up some 1,500 times each: runs are long, and half of the rows lie in the nearer half of the cache."""
    table = Table("t", rows=2000, dim=16, pooling=3000.0, access=AccessProfile.uniform(2000))
    task = Task([table], Topology(devices_per_host=1), 1000)
    lookups, row, cache = 3e6, 64.0, 128e3
    sizes = dict(zip(PARTS, parts(WorkArrays.of([shard_work(task, Shard.whole(table, 0))]), cache)[0], strict=True))
    expected = {
        "shard": 1e-2,
        "bags": 1000 * 1e-7,
        "outputs": 16_000 * 1e-9,
        "lookups": lookups * 1e-7,
        "bytes": lookups * row * 1e-9,
        "missed_first": 2000 * 1e-7,
        "missed_near": (1000 + lookups / 2) * 1e-7,
        "missed_bytes": 2000 * row * 1e-9,
        "long_runs": 2000 * 1e-5,
        "long_run_lookups": lookups * 1e-7,
        "gradients": lookups * 16 * 1e-9,
    }
    for name, size in expected.items():
        np.testing.assert_allclose(sizes[f"pooled_{name}"], size, rtol=1e-6, err_msg=name)
    assert not any(size for name, size in sizes.items() if "sequence" in name)


def test_no_works_give_no_rows():
    assert features(WorkArrays.of([])).shape == (0, len(FEATURES))
    assert parts(WorkArrays.of([]), 1e6).shape == (0, len(PARTS))
