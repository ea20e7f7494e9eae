from itertools import pairwise

import numpy as np

from shardwright.cost.features import FEATURES, SCALES, WorkArrays, features, scales
from shardwright.sharding import Shard, shard_work
from shardwright.sharding.shard import even_cuts
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


def test_no_works_give_no_rows():
    assert features(WorkArrays.of([])).shape == (0, len(FEATURES))
