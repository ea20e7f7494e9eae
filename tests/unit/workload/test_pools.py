import json
from importlib.resources import files

import numpy as np
import pytest

from shardwright.errors import InvalidInput
from shardwright.workload.pools import POOLS, table_pool

FACTS = json.loads((files("shardwright.workload") / "data" / "public_models.json").read_text())


@pytest.fixture(scope="module", params=POOLS)
def batch(request):
    """A pool's published facts, and its expected distinct rows and lookups by reuse bin, `(17,)` each."""
    facts = FACTS[request.param.replace("dlrm-", "dlrm_datasets_")]
    reuse = [table.access.reuse(table.pooling * facts["batch_size"]) for table in table_pool(request.param)]
    unique, lookups = np.sum(reuse, axis=0)
    return facts, unique, lookups


def test_totals_match_the_published_ones(batch):
    facts, unique, lookups = batch
    assert lookups.sum() == pytest.approx(facts["lookups"], rel=0.001)
    assert unique.sum() == pytest.approx(facts["unique_rows"], rel=0.001)


def test_reuse_histograms_match_the_published_ones(batch):
    facts, unique, lookups = batch
    np.testing.assert_allclose(unique / unique.sum(), facts["unique_row_share"], atol=0.001, rtol=0)
    np.testing.assert_allclose(lookups / lookups.sum(), facts["lookup_share"], atol=0.001, rtol=0)


@pytest.mark.parametrize("name", POOLS)
def test_lookups_follow_from_the_pooling_factors_alone(name):
    facts = FACTS[name.replace("dlrm-", "dlrm_datasets_")]
    assert POOLS[name] == facts["batch_size"]
    total = sum(table.pooling for table in table_pool(name)) * POOLS[name]
    assert total == pytest.approx(facts["lookups"], rel=0.001)


@pytest.mark.parametrize(("name", "tables"), [("dlrm-2021", 856), ("dlrm-2022", 788)])
def test_tables_are_many_and_varied(name, tables):
    pool = table_pool(name)
    assert len(pool) == len({table.name for table in pool}) == tables
    rows = np.array([table.rows for table in pool])
    pooling = np.array([table.pooling for table in pool])
    exponent = np.array([table.access.exponent for table in pool])
    assert rows.min() < 100
    assert rows.max() > 10_000_000
    assert rows.mean() > 3 * np.median(rows)  # heavy tails
    assert pooling.mean() > 3 * np.median(pooling)
    assert pooling.min() < 0.1
    assert pooling.max() > 150
    assert exponent.min() < 0.2
    assert exponent.max() > 1.4
    assert exponent.std() > 0.2
    assert (np.diff(rows) < 0).any(), "the order of the pool must not give the size away"


def test_a_pool_is_made_once():
    assert table_pool("dlrm-2021") is table_pool("dlrm-2021")


def test_the_pools_are_different():
    assert table_pool("dlrm-2021")[0] != table_pool("dlrm-2022")[0]


def test_unknown_pool_names_the_known_ones():
    with pytest.raises(InvalidInput, match=r"'dlrm-2020'.*dlrm-2021, dlrm-2022"):
        table_pool("dlrm-2020")
