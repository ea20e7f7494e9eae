from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.errors import InvalidInput
from shardwright.task import Links, LinkSpeed, Task
from shardwright.task.link_files import Cluster, LinkErrors, MeasuredLinks, load_links
from shardwright.task.links import ModuleTimes, links_from_dict, links_to_dict

CLUSTER = Cluster("h100", 2, 8, "nccl", "2.13.0")
LINKS = Links(
    all_to_all=(LinkSpeed(0.03, 335e9), LinkSpeed(0.04, 48e9, 0.02, 60e9)),
    all_reduce=(LinkSpeed(0.05, 1e9), None),
    modules=ModuleTimes(pooled_ms=1.5),
)
ERRORS = {"all_to_all": {"intra": LinkErrors(0.08, 0.02), "inter": LinkErrors(0.1, None)}}
MEASURED = MeasuredLinks(CLUSTER, LINKS, ERRORS, "2026-11-28T00:00:00+00:00")
TASK = """
batch_size: 1024
topology: {preset: h100-8, hosts: 2, links: links.json}
tables: [{name: t, rows: 1000, dim: 16}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    MEASURED.save(tmp_path / "links.json")
    return tmp_path / "links.json"


def test_saved_links_load_unchanged(file: Path) -> None:
    assert load_links(file) == MEASURED
    assert str(CLUSTER) == "2 × 8 h100"


def test_a_task_takes_a_file_that_lies_beside_it_and_holds_its_links(file: Path) -> None:
    (file.parent / "task.yaml").write_text(TASK)
    task = Task.load(file.parent / "task.yaml")
    assert task.topology.links == LINKS
    task.save(file.parent / "same.json")
    file.unlink()
    assert Task.load(file.parent / "same.json") == task


def test_scaled_links_keep_their_ratio_for_one_sender() -> None:
    scaled = LINKS.scaled(2.0, (1.0, 0.5)).all_to_all
    assert scaled == (LinkSpeed(0.06, 335e9), LinkSpeed(0.08, 24e9, 0.04, 30e9))


@pytest.mark.parametrize(
    ("collective", "alone", "says"),
    [
        ("all_to_all", "1 GB/s", "links.all_to_all.inter: alone is 1e+09 bytes/s, must be at least the bandwidth, 2e+09 bytes/s"),
        ("all_to_all", 0, "links.all_to_all.inter.alone"),
        ("all_to_all", 5, "links.all_to_all.inter.alone: 5 would be 5 bytes per second; add a unit, as in '5 GB/s'"),
        ("all_reduce", "3 GB/s", "links.all_reduce: has alone, which only all_to_all and exchange may have"),
    ],
)  # fmt: skip
def test_impossible_speeds_of_one_sender_are_refused(collective: str, alone: object, says: str) -> None:
    speeds = {collective: {"inter": {"latency_ms": 0.1, "bandwidth": "2 GB/s", "alone": alone}}}
    with pytest.raises(InvalidInput, match=re.escape(says)):
        links_from_dict(speeds, "links")


@pytest.mark.parametrize(
    ("old", "new", "shape"),
    [("hosts: 2", "hosts: 4", "4 × 8 h100"), ("h100-8", "h200-8", "2 × 8 h200"), ("h100-8,", "h100-8, devices_per_host: 4,", "2 × 4 h100")],
)  # fmt: skip
def test_links_of_another_cluster_are_refused(file: Path, old: str, new: str, shape: str) -> None:
    (file.parent / "task.yaml").write_text(TASK.replace(old, new))
    says = f"task.yaml: .*links.json: links of 2 × 8 h100, but the topology is {shape}; measure this cluster: shardwright calibrate --links"
    with pytest.raises(InvalidInput, match=says):
        Task.load(file.parent / "task.yaml")


def test_links_of_another_backend_are_refused(file: Path) -> None:
    MeasuredLinks(replace(CLUSTER, backend="gloo"), LINKS, {}, "").save(file)
    (file.parent / "task.yaml").write_text(TASK)
    says = "links of 2 × 8 h100 by gloo, but the topology is 2 × 8 h100, which trains by nccl; measure this cluster"
    with pytest.raises(InvalidInput, match=says):
        Task.load(file.parent / "task.yaml")


def test_a_plan_file_cannot_name_a_link_file_and_a_missing_one_raises(tmp_path: Path) -> None:
    from shardwright.task.files import task_from_dict

    document = {"batch_size": 8, "topology": {"links": "links.json"}, "tables": [{"name": "t", "rows": 10, "dim": 8}]}
    with pytest.raises(
        InvalidInput, match="topology: links names the file 'links.json', which only a task file may do"
    ):
        task_from_dict(document)
    with pytest.raises(InvalidInput, match="links.json: there is no such links file"):
        task_from_dict(document, folder=tmp_path)


def test_links_slower_than_a_bare_number_may_be_survive_plain_data():
    slow = Links(all_to_all=(LinkSpeed(0.1, 80_000.5), LinkSpeed(0.1, 50_000.0, alone=60_000.0)))
    assert links_from_dict(links_to_dict(slow), "links") == slow
