"""The machines of a cluster that measure together."""

from __future__ import annotations

import pytest

from shardwright.errors import ClusterFailed
from shardwright.measure.remote import open_fleet
from tests.unit.measure.fleets import Machine, MadeUpCluster

MIXED = (
    Machine("n1", "one", cores=2, processor="Abacus 2"),
    Machine("n2", "two", cores=1),
    Machine("n3", "three", cores=4),
    Machine("head", "head", cores=0),
)


@pytest.fixture(autouse=True)
def a_gpu_of_80_gb(monkeypatch):
    monkeypatch.setattr("shardwright.measure.remote.device_memory", lambda: 80 * 10**9)


def test_the_machines_of_the_most_common_kind_work_on_all_their_cores():
    with open_fleet(MadeUpCluster(MIXED)) as fleet:
        assert fleet.pool.size == 5
        assert fleet.facts.hardware["processor"] == "Abacus 1"
        assert [state.host for state in fleet.pool.states] == ["two", *["three"] * 4]
    assert fleet.left_out == ("one (Abacus 2, 4 cores, torch 2.9)",)
    (note,) = fleet.notes
    assert "Abacus 1, 4 cores, torch 2.9" in note
    assert "one (Abacus 2, 4 cores, torch 2.9)" in note


@pytest.mark.parametrize(
    ("local", "device", "hosts"), [(False, "cpu", "abc"), (True, "cpu", "aaaabbc"), (False, "cuda", "aab")]
)
def test_on_machines_of_many_one_measures_at_a_time_on_each_cpu_and_gpu(local, device, hosts):
    machines = [Machine("a", "a", cores=4, gpus=2), Machine("b", "b", cores=2, gpus=1), Machine("c", "c", cores=1)]
    with open_fleet(MadeUpCluster(machines, local=local), device) as fleet:
        assert "".join(state.host for state in fleet.pool.states) == hosts


def test_of_equally_common_kinds_the_first_machine_counts():
    machines = [Machine("a", "a", processor="Abacus 2"), Machine("b", "b")]
    with open_fleet(MadeUpCluster(machines)) as fleet:
        assert fleet.facts.hardware["processor"] == "Abacus 2"


def test_machines_of_one_kind_are_no_news():
    with open_fleet(MadeUpCluster(MIXED[1:])) as fleet:
        assert fleet.notes == []


def test_a_python_of_another_patch_level_is_no_other_kind():
    class Patched(Machine):
        @property
        def hardware(self):
            return super().hardware | {"python": "3.11.9"}

    with open_fleet(MadeUpCluster([Machine("a", "a"), Patched("b", "b")])) as fleet:
        assert fleet.pool.size == 4


def test_machines_that_do_not_answer_are_left_out():
    with open_fleet(MadeUpCluster(MIXED, silent=("three",))) as fleet:
        assert fleet.facts.hardware["processor"] == "Abacus 2"


@pytest.mark.parametrize(("device", "what"), [("cpu", "CPU core"), ("cuda", "GPU with a free CPU core")])
def test_a_cluster_that_lends_nothing_is_refused(device, what):
    with (
        pytest.raises(ClusterFailed, match=f"--ray local: no node lends a {what}"),
        open_fleet(MadeUpCluster(MIXED[3:]), device),
    ):
        pass
