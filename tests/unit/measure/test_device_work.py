from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from shardwright.measure.device_work import decode_work, encode_work
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile
from shardwright.task.table import Dtype
from tests.strategies import access_profiles


@given(access_profiles(), st.floats(0.01, 1e7), st.booleans(), st.sampled_from(["fp32", "fp16"]), st.booleans())
def test_works_survive_the_wire_exactly(
    access: AccessProfile, lookups: float, pooled: bool, dtype: Dtype, weighted: bool
) -> None:
    shared = {"feature_shares": (0.25, 0.75), "weighted": weighted}
    work = ShardWork(int(access.total_rows), 8, 16, lookups, pooled, access, dtype, 0.5, **shared)  # type: ignore[arg-type]
    assert decode_work(json.loads(json.dumps(encode_work(work)))) == work
