import pytest

from shardwright.errors import InvalidInput
from shardwright.measure.collection import seconds_or_default


@pytest.mark.parametrize("seconds", [0.0, -3.0, float("nan")])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(InvalidInput, match=r"--seconds is .*, must be greater than 0"):
        seconds_or_default(seconds, "cpu")


def test_only_a_gpu_has_a_limit_by_itself():
    assert seconds_or_default(None, "cpu") is None
    assert seconds_or_default(None, "cuda") == 1400
    assert seconds_or_default(3.0, "cuda") == 3.0
