from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from shardwright.measure.device_work import decode_work, encode_work
from shardwright.sharding.work import ShardWork
from tests.strategies import access_profiles


@given(access_profiles(), st.floats(0.01, 1e7), st.booleans(), st.sampled_from(["fp32", "fp16"]))
def test_works_survive_the_wire_exactly(access: object, lookups: float, pooled: bool, dtype: str) -> None:
    work = ShardWork(int(access.total_rows), 8, 16, lookups, pooled, access, dtype)  # type: ignore[attr-defined, arg-type]
    assert decode_work(json.loads(json.dumps(encode_work(work)))) == work
