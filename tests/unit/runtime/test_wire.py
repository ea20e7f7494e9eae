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
    elements = [5, 10, 20, 40]
    meter.add(Label("forward", "ids"), (0, 1, 2, 2), elements, elements[::-1], 2)
    meter.add(Label("backward", "gradients"), (0, 1, 2, 2), elements, elements, 2)
    assert meter.sent["forward", "ids", "inter"] == 120
    assert meter.received["forward", "ids", "self"] == 80
    assert meter.total() == 280
    assert meter.total("self") == 20
    assert meter.total("inter", "backward") == 120
    assert meter.total(kind="gradients") == 140
    meter.reset()
    assert meter.total() == 0
    assert not meter.received


def test_gloos_threads_run_before_anything_is_sent(monkeypatch):
    done = []

    class Connection:
        def send(self, *_):
            done.append("send")
            return self

        def recv(self, *_):
            return self

        def wait(self):
            done.append("wait")

    monkeypatch.setattr(os, "sched_yield", lambda: done.append("give way"), raising=False)
    members = Members(Connection(), (0, 1), 0, (0, 1), Connection())
    exchange = Wire(members, TrafficMeter(), torch.device("cpu")).exchange
    one_each = Sizes(np.array([[1, 1]]), np.array([[1, 1]]))
    exchange(lambda _: torch.zeros(2, 3), one_each, [3], Label("backward", "gradients"))
    assert done == ["give way", "send", "wait", "wait"]


def test_a_system_without_yields_sends_at_once(monkeypatch):
    monkeypatch.delattr(os, "sched_yield", raising=False)
    wire._give_way()
