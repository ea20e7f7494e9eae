import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidInput
from shardwright.sharding.rank_map import RankMap


@given(st.integers(1, 50), st.randoms(use_true_random=False), st.data())
def test_ids_and_ranks_are_a_bijection(rows: int, random: object, data: st.DataObject) -> None:
    ids = list(range(rows))
    random.shuffle(ids)  # type: ignore[attr-defined]
    hottest = ids[: data.draw(st.integers(0, rows))]
    ranked = np.array(hottest + sorted(set(ids) - set(hottest)))
    ranks = RankMap(rows, np.array(hottest, dtype=np.int64))
    assert ranks.ids(np.arange(rows)).tolist() == ranked.tolist()
    assert ranks.ranks(ranked).tolist() == list(range(rows))


def test_identity() -> None:
    assert RankMap.identity(5).ranks(np.array([4, 0, 2])).tolist() == [4, 0, 2]


@pytest.mark.parametrize(
    ("hottest", "message"),
    [
        ([0, 1, 2, 3], "4 hottest ids for a table of 3 rows"),
        ([0, 3], "ids from 0 to 3 for a table of 3 rows"),
        ([-1], "ids from -1 to -1"),
        ([2, 2], "an id occurs twice"),
    ],
)
def test_what_is_no_rank_map(hottest: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        RankMap(3, np.array(hottest))
