"""Addresses that lead nowhere, and the end of a cluster of this machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardwright.cluster import connection, open_cluster
from shardwright.errors import ClusterFailed, InvalidInput, MissingDependency
from tests.processes import descendants
from tests.ray_cluster import needs_ray


def test_without_ray_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'shardwright\[ray\]'"), open_cluster("local"):
        pass


@needs_ray
@pytest.mark.parametrize(
    "address",
    ["", "nonsense", "local:0", "local:many", "local:", "host:0", "host:99999", "ray://host", "http://a/b:1", ":6379"],
)
def test_text_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match=f"--ray {re.escape(address)}: .*must be"), open_cluster(address):
        pass


@needs_ray
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_without_a_listener_fails_at_once(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterFailed, match=f"--ray {address}: nothing answers there"), open_cluster(address):
            pass


@pytest.mark.slow
@needs_ray
def test_listeners_that_are_no_cluster_are_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        before = set(descendants(os.getpid()))
        with pytest.raises(ClusterFailed, match="within 2 s"), open_cluster(address, patience_s=2.0):
            pass
        assert set(descendants(os.getpid())) <= before


@needs_ray
@pytest.mark.slow
def test_auto_without_a_cluster_shows_how_to_start_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Ray would also take a cluster of a test that runs beside this one.
    blind = "import ray._private.services as services; services.find_gcs_addresses = set"
    monkeypatch.setattr(connection, "_ASK", f"{blind}\n{connection._ASK}")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ClusterFailed, match="ray start --head"), open_cluster("auto", patience_s=300.0):
        pass


@needs_ray
@pytest.mark.slow
def test_a_cluster_of_this_machine_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))  # too deep for the sockets
    before, handler, folders = dict(os.environ), signal.getsignal(signal.SIGTERM), list[Path]()

    @contextmanager
    def noted() -> Iterator[Path]:
        with session_folder() as path:
            folders.append(path)
            yield path

    session_folder = connection.session_folder
    monkeypatch.setattr(connection, "session_folder", noted)
    with pytest.raises(KeyError, match="mine"), open_cluster("local:1") as cluster:  # noqa: PT012
        assert len(cluster.places()) == 1
        assert len(list(folders[0].glob("session_*/sockets/*"))) >= 2
        raise KeyError("mine")
    added = {name for name in os.environ if name not in before}
    assert added <= {"RAY_CLIENT_MODE", "PYTHONBREAKPOINT"}  # importing Ray sets these
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not folders[0].exists()
    assert list(deep.iterdir()) == []


def test_without_a_short_enough_folder_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_ROOM", -2)
    with pytest.raises(ClusterFailed, match="set TMPDIR"), connection.session_folder():
        pass
    monkeypatch.undo()
    with connection.session_folder() as folder:
        assert folder.is_dir()
