"""Plug-ins of other packages: found by name, imported late, and no trouble of others."""

import sys

import pytest

import shardwright as sw
from shardwright.cost.choice import given_cost_model, model_behind
from shardwright.errors import InvalidInput
from shardwright.measure.backends import check_backend, is_own, load_backend, source_digest
from shardwright.plugins import plugins
from shardwright.search import strategy_named, strategy_names
from shardwright.testing.tasks import task_of

MODULE = """
from pathlib import Path

from shardwright.testing.model import SimpleCostModel

Path(__file__).with_suffix(".imported").touch()


class Placed:
    name = "placed"

    def supports(self, task):
        return None

    def search(self, task, cost_model, *, seed, deadline):
        import shardwright as sw

        shards = [sw.Shard.whole(table, 0) for table in task.tables]
        return sw.Plan(task, shards, self.name, seed)


class Priced(SimpleCostModel):
    def __init__(self):
        super().__init__(name="priced")


class Timed:
    name = "timed"

    def build(self, group, optimizer, arena, learning_rate=0.1):
        raise NotImplementedError


class Misnamed(Placed):
    name = "other"


class Demanding(Placed):
    def __init__(self, option):
        pass


def leave():
    raise SystemExit(3)
"""
POINTS = {
    "strategies": {
        "placed": "Placed",
        "greedy": "Placed",
        "auto": "Placed",
        "misnamed": "Misnamed",
        "demanding": "Demanding",
        "leaving": "leave",
        "gone": "Gone",
        "priced": "Priced",
    },
    "cost_models": {"priced": "Priced", "gone": "Gone", "placed": "Placed"},
    "backends": {"timed": "Timed", "fbgemm": "Timed", "gone": "Gone"},
}


def install(folder, package, points):
    """Metadata of a package, as pip writes them."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(points)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module whose package is on the path."""
    name = f"plugged_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    groups = (
        f"[shardwright.{kind}]\n" + "".join(f"{key} = {name}:{value}\n" for key, value in points.items())
        for kind, points in POINTS.items()
    )
    install(tmp_path, "whole", "".join(groups))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def test_a_strategy_is_imported_when_it_is_named(module, tmp_path):
    with pytest.raises(
        InvalidInput, match="unknown strategy 'plcaed'; known strategies are auto, .*torchrec, tzrec, placed, misn"
    ):
        strategy_named("plcaed")
    assert "placed" not in strategy_names()
    assert not (tmp_path / f"{module}.imported").exists()
    assert sw.plan(task_of(3, 2), strategy="placed").strategy == "placed"
    assert (tmp_path / f"{module}.imported").exists()


@pytest.mark.parametrize("name", ["greedy", "auto"])
def test_our_names_stay_ours(module, tmp_path, name):
    assert strategy_named(name).name == name
    assert not is_own("fbgemm")
    assert not (tmp_path / f"{module}.imported").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("misnamed", "has the name 'other'; both names must be the same"),
        ("demanding", "cannot be loaded .TypeError: .*'option'.; fix or uninstall its package"),
        ("leaving", "cannot be loaded .SystemExit: 3."),
        ("gone", "cannot be loaded .AttributeError: module .* has no attribute 'Gone'."),
        ("priced", "has no supports and no search, which its class must define"),
    ],
)
def test_errors_of_a_strategy_take_one_line(module, name, says):
    with pytest.raises(
        InvalidInput, match=rf"^shardwright\.strategies: plug-in '{name}' \({module}:\w+\) {says}"
    ) as error:
        strategy_named(name)
    assert "\n" not in str(error.value)


def test_a_cost_model_is_named_like_a_file(module, tmp_path, monkeypatch):
    plan = sw.plan(task_of(3, 2), strategy="greedy", cost_model="priced")
    assert plan.cost_model == "priced"
    assert model_behind(plan).name == "priced"
    with pytest.raises(InvalidInput, match=r"shardwright\.cost_models: plug-in 'gone'"):
        given_cost_model("gone")
    with pytest.raises(InvalidInput, match="has no pricing and no encode_arrays"):
        given_cost_model("placed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "priced").write_text("a file of this name comes first")
    with pytest.raises(InvalidInput, match="^priced: "):
        given_cost_model("priced")


def test_a_backend_is_the_class_of_its_entry_point(module):
    assert is_own("timed")
    assert not is_own("tmied")
    check_backend("timed")
    assert load_backend("timed").name == "timed"
    assert source_digest("timed") == source_digest(f"{module}:Timed")
    with pytest.raises(InvalidInput, match=f"Gone does not exist in {module}, which defines"):
        load_backend("gone")
    with pytest.raises(InvalidInput, match="known backends are fbgemm, embedding_bag, timed, fbgemm, gone, and one"):
        check_backend("tmied")


def test_damaged_metadata_of_one_package_hide_no_other(module, tmp_path):
    install(tmp_path, "a_damaged", "[shardwright.strategies]\nno equals sign\n")
    assert set(plugins("strategies")) == POINTS["strategies"].keys()


def test_without_plugins_there_are_none():
    assert not any(plugins(kind) for kind in POINTS)
