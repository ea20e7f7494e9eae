import re
import warnings
from dataclasses import replace

import pytest

from shardwright.errors import InvalidInput
from shardwright.task import PRESETS, Links, Table, Task, Topology
from shardwright.task.files import task_from_dict, task_to_dict
from shardwright.task.topology import DenseTime, Exchange, Pipeline


def test_units_become_numbers() -> None:
    topology = Topology(2, 2, "h100", "80 GB", "450 GB/s", "400 Gbit/s")
    assert topology.memory_bytes == (80 * 10**9,) * 4
    assert topology.link_bandwidth == (450e9, 50e9)


def test_ranks_go_host_by_host() -> None:
    topology = Topology(3, 4)
    assert topology.devices == 12
    assert [topology.host_of(rank) for rank in (0, 3, 4, 11)] == [0, 0, 1, 2]


@pytest.mark.parametrize("name", [*PRESETS, "cpu"])
def test_presets_span_any_number_of_hosts(name: str) -> None:
    one, four = Topology.preset(name), Topology.preset(name, hosts=4)
    assert four.devices == 4 * one.devices
    assert four.memory_bytes == one.memory_bytes * 4
    assert four.device == one.device


def test_presets_can_be_changed() -> None:
    topology = Topology.preset("h100-8", devices_per_host=2, memory=["1 GB", "2 GB"])
    assert topology.memory_bytes == (10**9, 2 * 10**9)
    assert topology.device == "h100"
    assert PRESETS["h100-8"].devices == 8


@pytest.mark.parametrize(
    ("name", "full", "count"),
    [("h100-4", "h100-8", 4), ("A100_2", "a100-8", 2), ("a10g-1", "a10g-4", 1), ("a10g-6", "a10g-8", 6)],
)
def test_part_of_a_host(name: str, full: str, count: int) -> None:
    assert Topology.preset(name, hosts=2) == Topology.preset(full, devices_per_host=count, hosts=2)


def test_a_topology_prints_as_one_line() -> None:
    topology = Topology(2, 8, "h200", "120 GB", "450 GB/s", "50 GB/s")
    assert repr(topology) == "<Topology: 2 × 8 h200, 120.0 GB each, 450.0 GB/s inside a host, 50.0 GB/s between hosts>"
    mixed = Topology(1, 2, memory=["1 GB", "2 GB"])
    assert repr(mixed) == "<Topology: 1 × 2 cpu, 1.0 GB to 2.0 GB each, 10.0 GB/s inside a host>"


@pytest.mark.parametrize(
    "exchange",
    [
        Exchange(),
        Exchange("host", "cheaper"),
        Exchange("none", "touched"),
        Exchange(pipeline="sparse_dist", dense_ms=3.0),
        Exchange(dense_ms=DenseTime(0.5, 3, 1.5)),
    ],
)
def test_task_files_keep_it(exchange: Exchange) -> None:
    task = Task([Table("t", 10, 4)], Topology(1, 2, "cpu", "1 GB"), 8, exchange=exchange)
    document = task_to_dict(task)
    assert ("exchange" in document) == (exchange != Exchange())
    assert task_from_dict(document) == task


@pytest.mark.parametrize("pipeline", ["none", "sparse_dist", "prefetch"])
def test_a_number_of_dense_ms_hides_ids_in_a_pipeline(pipeline: Pipeline) -> None:
    exchange = Exchange(pipeline=pipeline, dense_ms=3)
    assert exchange.dense_ms == DenseTime(ids=3.0)
    assert exchange.hidden == DenseTime(ids=0.0 if pipeline == "none" else 3.0)
    assert Exchange(pipeline=pipeline, dense_ms=DenseTime(1, 2, 4)).hidden.scaled(0.5).gradients == 2.0


@pytest.mark.parametrize(
    ("dense_ms", "message"),
    [
        ({"ids": -2}, "exchange: dense_ms: ids is -2"),
        ({"values": float("inf")}, "exchange: dense_ms: values is inf, must be a finite number of at least 0"),
        ({"idds": 2}, "unknown field 'idds'; did you mean 'ids'"),
        ("3 ms", "dense_ms"),
        (True, "dense_ms"),
    ],
)
def test_bad_dense_layers_are_named_in_one_line(dense_ms: object, message: str) -> None:
    document = task_to_dict(Task([Table("t", 10, 4)], Topology(1, 2, "cpu", "1 GB"), 8))
    with pytest.raises(InvalidInput, match=re.escape(message)) as error:
        task_from_dict(document | {"exchange": {"dense_ms": dense_ms}})
    assert "\n" not in str(error.value)


def test_a_device_brings_the_links_of_its_first_preset() -> None:
    known, preset = Topology(2, 4, "h100"), PRESETS["h100-8"]
    assert (known.link_bandwidth, known.link_latency_ms) == (preset.link_bandwidth, preset.link_latency_ms)
    assert known.memory_bytes[0] == 4 * 10**9  # which is asked for, as ever
    assert Topology(2, 4, "h100", inter_bandwidth="1 GB/s").link_bandwidth == (preset.link_bandwidth[0], 1e9)
    assert Topology(2, 4, "h100", intra_latency_ms=0).link_latency_ms == (0, preset.link_latency_ms[1])
    assert Topology(2, 4).link_bandwidth == (10e9, 10e9)
    assert Topology(2, 4).link_latency_ms == (0.02, 0.05)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_leave_a_part_of_the_card_and_name_their_device(name: str) -> None:
    preset = PRESETS[name]
    assert preset.hosts == 1
    assert name.endswith(f"{preset.devices_per_host}")
    assert name.startswith(preset.device)
    assert preset.link_bandwidth[0] >= preset.link_bandwidth[1] > 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ((2, 4), "state intra_bandwidth and inter_bandwidth, or links"),
        ((1, 4), "state intra_bandwidth, or links"),
        ((4, 1), "state inter_bandwidth, or links"),
    ],
)
def test_bandwidths_that_nobody_knows_are_warned_of(fields: tuple[int, int], named: str) -> None:
    with pytest.warns(UserWarning, match=f"no preset has 'abacus' devices, so 10 GB/s are assumed; {named}") as warned:
        topology = Topology(*fields, "abacus")
    assert warned[0].filename == __file__
    assert topology.link_bandwidth == (10e9, 10e9)


def test_known_devices_and_single_devices_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Topology(1, 1, "abacus")
        Topology(1, 4, "abacus", intra_bandwidth="1 GB/s")
        Topology(2, 4, "abacus", links=Links())
        Topology(2, 4)
        replace(Topology(2, 4, "h100"), device="abacus")
