import os

import numpy as np
import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright.runtime import wire
from shardwright.runtime.process_groups import Members
from shardwright.runtime.wire import Label, Sizes, TrafficMeter, Wire


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


@pytest.mark.parametrize(
    ("phase", "back", "order"),
    [
        ("forward", "gloo's second connections", ["give way", "send"]),
        ("forward", None, ["send"]),
        ("backward", "gloo's second connections", ["send"]),
    ],
)
def test_a_forward_exchange_over_gloo_gives_way_before_it_sends(monkeypatch, phase, back, order):
    done = []

    class Arrival:
        def __init__(self, *_):
            pass

        def send(self, *_):
            done.append("send")

    monkeypatch.setattr(wire, "Arrival", Arrival)
    monkeypatch.setattr(os, "sched_yield", lambda: done.append("give way"), raising=False)
    members = Members("a group", (0, 1), 0, (0, 1), back)
    sizes = Sizes(np.array([[1, 1]]), np.array([[1, 1]]))
    exchange = Wire(members, TrafficMeter(), torch.device("cpu")).exchange
    exchange(lambda _: torch.zeros(2, 3), sizes, [3], Label(phase, "values"))
    assert done == order


def test_a_system_without_yields_sends_at_once(monkeypatch):
    monkeypatch.delattr(os, "sched_yield", raising=False)
    wire._give_way()
