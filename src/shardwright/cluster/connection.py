"""Connect to a Ray cluster, or start one on this machine for as long as it is needed.

A Ray cluster runs any code that a client sends. So a cluster started here listens on the loopback interface only and requires a secret
token. Client and cluster trust each other. A separate process checks whether a cluster answers: if none does, Ray may wait for ever, or end
the calling process.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import Any

from shardwright.cluster.pool import Cluster
from shardwright.errors import ClusterFailed, InvalidInput, MissingDependency

_ASK = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False, logging_level='error'); ray.nodes(); ray.shutdown()"
_CONNECT_S = 5.0
_REMEDIES = (
    "start a cluster with: ray start --head, or use --ray local",
    "check host and port (of the Ray client server, usually 10001), and that both sides have the same version of Ray",
    "check host and port (of the head, usually 6379); from a machine that is no node of the cluster, use ray://HOST:10001; on this machine "
    "alone, use --ray local",
)


def check_answers(address: str, patience_s: float) -> None:
    """Check that a cluster answers.

    Args:
        address: "auto", "HOST:PORT" or "ray://HOST:PORT".
        patience_s: seconds in which the cluster must answer.

    Raises:
        InvalidInput: the address has another form.
        ClusterFailed: the cluster does not answer in time, or refuses.
    """
    remedy = _REMEDIES[0 if address == "auto" else 1 if address.startswith("ray://") else 2]
    if address != "auto":
        try:
            socket.create_connection(_host_and_port(address), timeout=min(patience_s, _CONNECT_S)).close()
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise ClusterFailed(f"--ray {address}: nothing answers there ({reason}); {remedy}") from error
    ask = [sys.executable, "-P", "-c", _ASK, address]
    try:
        asked = subprocess.run(ask, capture_output=True, text=True, errors="replace", timeout=patience_s, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterFailed(
            f"--ray {address}: no Ray cluster answers there within {patience_s:g} s; {remedy}"
        ) from None
    if asked.returncode:
        lines = [line.strip() for line in asked.stderr.splitlines() if line.strip()] or ["it ended without a word"]
        raise ClusterFailed(f"--ray {address}: Ray cannot connect ({lines[-1][:300]}); {remedy}")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidInput(
            f"--ray {address}: must be local, local:N, auto, HOST:PORT or ray://HOST:PORT, as in ray://10.0.0.1:10001"
        )
    return host.strip("[]"), int(port)


_ROOM = 107 - len("/shardwright-ray-12345678/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Most bytes in the path of the temporary folder: Ray's sockets are in it, and the path of a Unix socket has at most 107."""


@contextmanager
def session_folder() -> Iterator[Path]:
    """A new folder with a path short enough for Ray's sockets.

    It lies in the usual temporary folder if that has a short path, else in /tmp or /dev/shm.

    Raises:
        ClusterFailed: none of these can be used.
    """
    bases = [tempfile.gettempdir(), "/tmp", "/dev/shm"]  # noqa: S108  (mkdtemp makes a private folder)
    base = next(
        (base for base in bases if len(os.fsencode(base)) <= _ROOM and os.access(base, os.W_OK | os.X_OK)), None
    )
    if base is None:
        raise ClusterFailed(
            f"--ray local: the path of a temporary folder may have {_ROOM} bytes, {bases[0]} has {len(os.fsencode(bases[0]))}; "
            "set TMPDIR to a folder with a shorter path"
        )
    folder = Path(tempfile.mkdtemp(prefix="shardwright-ray-", dir=base))
    try:
        yield folder
    finally:
        for _ in range(20):  # Ray's processes may still be writing their last lines
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            sleep(0.1)


_STORE_BYTES = 100 * 2**20
"""Shared memory of a cluster on this machine; jobs and results are small. Ray uses files if /dev/shm has less."""

_NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0"}
_TOKEN = secrets.token_hex(32)  # one for this process, because Ray reads it once

PATIENCE_S = 60.0
"""Seconds in which a cluster must answer; on a busy machine, importing Ray takes some of them."""


@contextmanager
def open_cluster(address: str, *, patience_s: float = PATIENCE_S) -> Iterator[Cluster]:
    """Connect to a cluster; for "local", start one on this machine and end it afterwards.

    Args:
        address: "local" (a worker for each core of this machine, at least 2), "local:N" (N workers), "auto" (the cluster that this
            machine is a node of), "HOST:PORT" (the same, by the address of its head), or "ray://HOST:PORT" (from any machine).
        patience_s: seconds in which a cluster must answer.

    Raises:
        MissingDependency: Ray is not installed.
        InvalidInput: the address has another form.
        ClusterFailed: the cluster does not answer, or Ray does not start here.
    """
    if find_spec("ray") is None:
        raise MissingDependency(
            "--ray needs Ray, which is not installed; install it with: pip install 'shardwright[ray]'"
        )
    with ExitStack() as stack:
        options = {"address": address}
        if Cluster(address).local:
            options = stack.enter_context(_alone(_local_workers(address)))
        else:
            stack.enter_context(_environment(_NO_STATISTICS))
            check_answers(address, patience_s)
        stack.enter_context(_session(address, options))
        yield Cluster(address)


def _local_workers(address: str) -> int:
    _, colon, count = address.partition(":")
    if not colon:
        return max(2, len(os.sched_getaffinity(0)))
    if not count.isdigit() or not 1 <= int(count) <= 1024:
        raise InvalidInput(f"--ray {address}: the number of workers must be 1 to 1024, as in local:4")
    return int(count)


@contextmanager
def _alone(workers: int) -> Iterator[dict[str, Any]]:
    """The options of a cluster on this machine alone, with its environment and folder for the duration of the block."""
    with (
        _environment(_NO_STATISTICS | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}),
        session_folder() as folder,
    ):
        yield {
            "address": "local",
            "num_cpus": workers,
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
            "_temp_dir": str(folder),
            "_node_ip_address": "127.0.0.1",
        }


@contextmanager
def _session(address: str, options: dict[str, Any]) -> Iterator[None]:
    """Connect Ray for the duration of a block, then restore the signal handler that Ray replaced."""
    import ray

    if ray.is_initialized():
        raise ClusterFailed(
            f"--ray {address}: this process is connected to a cluster already; call ray.shutdown() first"
        )
    from ray._private import ray_constants, worker

    local = options["address"] == "local"
    what = "Ray does not start here" if local else "cannot connect"
    remedy = "leave --ray out, or use a cluster that runs" if local else "is the cluster up?"
    # Ray prints on stdout that a worker died, with any settings; stdout is for results.
    silent = _changed(vars(worker), {"_worker_logs_enabled": False})
    # Makes a cluster of one node listen on the loopback interface; outside Linux, Ray does so by itself.
    loopback = _changed(vars(ray_constants), {"ENABLE_RAY_CLUSTER": False} if local else {})
    handler = signal.getsignal(signal.SIGTERM)
    with silent, loopback:
        try:
            try:
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
            except (RuntimeError, OSError, ValueError, ray.exceptions.RayError) as error:
                said = (*str(error).split("\n"), type(error).__name__)
                why = next(line.strip() for line in said if line.strip())
                raise ClusterFailed(f"--ray {address}: {what} ({why}); {remedy}") from error
            yield
        finally:
            ray.shutdown()
            if threading.current_thread() is threading.main_thread() and handler is not None:
                signal.signal(signal.SIGTERM, handler)


def _environment(wanted: dict[str, str]) -> AbstractContextManager[None]:
    """Set those environment variables that are not set yet, for the duration of a block."""
    return _changed(os.environ, {name: value for name, value in wanted.items() if name not in os.environ})


@contextmanager
def _changed(settings: MutableMapping[str, Any], changes: Mapping[str, Any]) -> Iterator[None]:
    """Change environment variables, or settings inside a module of Ray, for the duration of a block."""
    before = {name: settings[name] for name in changes if name in settings}
    settings.update(changes)
    try:
        yield
    finally:
        for name in changes:
            settings.pop(name, None)
        settings.update(before)
