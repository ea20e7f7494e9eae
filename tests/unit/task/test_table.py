from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from shardwright.task import AccessProfile, Table
from shardwright.task.table import shares_of_more_ids


def test_weight_bytes() -> None:
    assert Table("t", 1000, 16).weight_bytes == 64_000
    assert Table("t", 1000, 16, dtype="fp16").weight_bytes == 32_000
    assert Table("t", 1000, 16, dtype="int8").weight_bytes == 24_000  # with 8 bytes of scale and bias a row


@pytest.mark.parametrize("given", [[1, 30], (1.0, 30.0), np.array([1, 30]), iter([1.0, 30.0])])
def test_features_that_share_a_table(given: Sequence[float]) -> None:
    table = Table("t", 1000, 8, given)
    assert (table.pooling, table.poolings) == (31.0, (1.0, 30.0))
    assert sum(table.feature_shares) == pytest.approx(1)
    assert {table} == {Table("t", 1000, 8, [1, 30])} != {Table("t", 1000, 8, 31)}


def test_a_list_of_one_number_is_that_number() -> None:
    assert Table("t", 1000, 8, [0.1]) == Table("t", 1000, 8, 0.1)
    assert (Table("t", 1000, 8, 0.1).poolings, Table("t", 1000, 8, 0.1).feature_shares) == ((0.1,), (1.0,))


def test_features_stay_in_changed_tables() -> None:
    table = Table("t", 1000, 8, [0.1, 0.2, 0.7])
    assert replace(table, dim=4).poolings == table.scaled_rows(2).poolings == table.poolings
    assert replace(table, pooling=2 * table.pooling).poolings == pytest.approx((0.2, 0.4, 1.4))
    assert replace(table, pooling=[3.0]).poolings == (3.0,)  # type: ignore[arg-type]
    once = replace(table, pooling=7.3)
    assert replace(once, dim=4).poolings == once.poolings


def test_a_profile_of_almost_the_rows_is_stretched_to_them() -> None:
    table = Table("t", 10, 4, access=AccessProfile.zipf(100, 1.0).thinned(9.7))
    assert table.access.total_rows == 10
    assert table.access.share_of(0, 10) == 1


def test_scaled_rows_keep_the_zipf_exponent() -> None:
    table = Table("t", 1000, 8, access=AccessProfile.zipf(1000, 1.1))
    assert table.scaled_rows(0.1) == Table("t", 100, 8, access=AccessProfile.zipf(100, 1.1))
    assert table.scaled_rows(1e-9).rows == 1


def test_scaled_rows_stretch_a_measured_profile() -> None:
    table = Table("t", 4, 8, access=AccessProfile.from_counts([5, 3, 1, 1]))
    assert table.scaled_rows(2.5).access.share_of(0, 2.5) == pytest.approx(0.5)


def test_scales_of_numpy_lose_no_digits() -> None:
    assert Table("t", 100_000_001, 1).scaled_rows(np.float32(1)).rows == 100_000_001  # type: ignore[arg-type]


def test_the_busiest_block_of_ids() -> None:
    table = Table("t", 1600, 4, id_shares=[0.7, 0.1, 0.0, 0.2])
    assert [table.share_of_block(rows) for rows in (1600, 800, 400)] == pytest.approx([1.0, 0.8, 0.7])
    assert table.share_of_block(200) == pytest.approx(0.35)  # half of the busiest range
    assert table.share_of_block(1) == pytest.approx(0.7 / 400)
    assert table.share_of_block(1000) == pytest.approx(0.8)
    assert replace(table, id_shares=[0.0, 0.5, 0.5, 0.0]).share_of_block(800) == 0.5
    assert Table("u", 1600, 4).share_of_block(400) == 0.25
    for rows in range(1, 1601, 13):
        assert rows / 1600 <= table.share_of_block(rows) <= 1


def test_shares_of_ids_in_a_table_with_more_rows() -> None:
    assert shares_of_more_ids((0.75, 0.25), 100, 100) == pytest.approx((0.75, 0.25))
    assert shares_of_more_ids((0.75, 0.25), 100, 200) == pytest.approx((1.0, 0.0))
    assert shares_of_more_ids((0.5, 0.5, 0.0, 0.0), 100, 150) == pytest.approx((0.75, 0.25, 0.0, 0.0))
    assert shares_of_more_ids((0.75, 0.25), 100, 99) == ()  # ids share rows, nobody knows which
    assert shares_of_more_ids((), 100, 200) == ()
