"""A dlrm_datasets file damaged anywhere either still reads as a consistent batch or raises InvalidInput, nothing else."""

import gzip
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright.errors import InvalidInput
from shardwright.workload.dlrm_datasets import iter_tables, read_tables

torch = pytest.importorskip("torch")


def saved_batch():
    lengths = torch.tensor([[2, 0, 3], [1, 1, 1]])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    buffer = io.BytesIO()
    torch.save((torch.tensor([4, 0, 4, 9, 1, 7, 7, 3]), offsets, lengths), buffer)
    return buffer.getvalue()


PLAIN = saved_batch()
PACKED = gzip.compress(PLAIN, mtime=0)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_read_or_refused(tmp_path, data):
    content = bytearray(data.draw(st.sampled_from([PLAIN, PACKED]), label="file"))
    for _ in range(data.draw(st.integers(1, 4), label="damaged bytes")):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))), label="cut at")
    path = tmp_path / "batch.pt"
    path.write_bytes(content[:end])
    try:
        tables = list(iter_tables(path))
        statistics = read_tables(path)
    except InvalidInput:
        return
    assert sum(batch.indices.size > 0 for _, batch in tables) == len(statistics)
    for _, batch in tables:
        assert batch.offsets[0] == 0
        assert batch.offsets[-1] == batch.indices.size
        assert (np.diff(batch.offsets) >= 0).all()
        assert batch.indices.size == 0 or batch.indices.min() >= 0
