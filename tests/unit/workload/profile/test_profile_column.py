import numpy as np
import pyarrow as pa
import pytest

from shardwright.workload.profile import profile_logs
from shardwright.workload.profile.column import ColumnCounter, ColumnProfile
from shardwright.workload.profile.kinds import ColumnKind
from shardwright.workload.profile.sketch import AccessSketch


def counter(ids="integers", is_list=False, pending=10):
    return ColumnCounter(ColumnProfile("x", ColumnKind(ids, is_list), AccessSketch(1000)), pending)


@pytest.mark.parametrize("pending", [1, 7, 10, 1000])
def test_nothing_is_lost_however_few_keys_may_wait(pending):
    ids = np.random.default_rng(0).integers(0, 50, 300)
    counting = counter(pending=pending)
    done = [counting.add(pa.array(part), "log") for part in np.split(ids, [3, 40, 41, 250])]
    column = counting.finish()
    assert done == [3, 37, 1, 209, 50]
    assert column.max_id == ids.max()
    assert sorted(column.sketch.sample_counts) == sorted(np.unique(ids, return_counts=True)[1])


def test_a_dictionary_counts_like_its_values():
    texts = ["a", "b", "c", "d", "e", "f"]
    values = pa.array(["f", "f", None, "b", *texts])
    coded = pa.DictionaryArray.from_arrays(pa.array([5, 5, None, 1, *range(6)]), pa.array(texts))
    with_null = pa.DictionaryArray.from_arrays(pa.array([6, 6, 0, 2, *range(1, 7)]), pa.array([None, *texts]))
    sketches = []
    for column in (values, coded, with_null, coded.cast(pa.dictionary(pa.int8(), pa.string()))):
        for pending in (3, 100):
            counting = counter("text", pending=pending)
            assert counting.add(column, "log") == 9
            sketches.append(counting.finish().sketch)
    assert all(np.array_equal(sketch.sample_keys, sketches[0].sample_keys) for sketch in sketches)
    assert all(np.array_equal(sketch.sample_counts, sketches[0].sample_counts) for sketch in sketches)


def test_the_longest_list_counts_ids():
    counting = counter(is_list=True)
    counting.add(pa.array([[1], None, []], type=pa.list_(pa.int64())), "log")
    assert counting.finish().longest == 1
    counting.add(pa.array([[1, 2, 3]]), "log")
    assert counting.finish().longest == 3


def test_progress_of_text_has_no_total(text):
    seen = []
    profile_logs(text("a.csv", "user,item\n1,2\n3,4\n"), progress=lambda done, total: seen.append((done, total)))
    profile_logs(text("a.txt", "1 2\n3 4\n"), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, None), (4, None)]
