import numpy as np
import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

from shardwright.runtime.storage import UniformRows
from shardwright.task import Table

TABLE = Table("t", 400, 16)


def test_weights_depend_on_table_id_and_seed_alone():
    rows = UniformRows(1)(TABLE, np.arange(400))
    some = np.array([399, 7, 7])
    assert (UniformRows(1)(TABLE, some) == rows[some]).all()
    assert (UniformRows(2)(TABLE, some) != rows[some]).any()
    assert (UniformRows(1)(Table("other", 400, 16), some) != rows[some]).any()


def test_weights_are_uniform_over_one_over_the_root_of_the_rows():
    rows = UniformRows()(TABLE, np.arange(400)) * 20
    assert rows.dtype == np.float32
    assert -1 <= rows.min() < -0.99
    assert 0.99 < rows.max() <= 1
    shares = np.histogram(rows, 10, (-1, 1))[0] / rows.size
    assert abs(shares - 0.1).max() < 0.01
    assert np.unique(rows).size > 0.99 * rows.size
    assert abs(np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]) < 0.15
