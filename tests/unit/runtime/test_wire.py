import numpy as np
import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

from shardwright.runtime.wire import TrafficMeter


def test_totals_by_link_phase_and_kind():
    meter = TrafficMeter()
    sizes = np.array([10, 20, 40, 80])
    meter.add("forward", "ids", (0, 1, 2, 2), sizes, sizes[::-1].copy())
    meter.add("backward", "gradients", (0, 1, 2, 2), sizes, sizes)
    assert meter.sent["forward", "ids", "inter"] == 120
    assert meter.received["forward", "ids", "self"] == 80
    assert meter.total() == 280
    assert meter.total("self") == 20
    assert meter.total("inter", "backward") == 120
    assert meter.total(kind="gradients") == 140
    meter.reset()
    assert meter.total() == 0
    assert not meter.received
