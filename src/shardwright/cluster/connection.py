"""Connecting to a Ray cluster, or starting one on this machine for as long as it is needed.

A cluster runs whatever code those who can reach it send, so one that is started here listens on the loopback interface only and asks for a
token that nobody else knows. Who connects to a cluster trusts it, and the cluster trusts them. A process of its own asks whether a cluster
answers: Ray may wait for ever, or end the process that asks, where none does.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from types import ModuleType
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
        patience_s: how long it may take.

    Raises:
        InvalidInput: the address is none.
        ClusterFailed: it does not answer in time, or refuses.
    """
    remedy = _REMEDIES[0 if address == "auto" else 1 if address.startswith("ray://") else 2]
    if address != "auto":
        try:
            socket.create_connection(_host_and_port(address), timeout=min(patience_s, _CONNECT_S)).close()
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise ClusterFailed(f"--ray {address}: nothing answers there ({reason}); {remedy}") from error
    ask, pipe, quiet = [sys.executable, "-P", "-c", _ASK, address], subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        ask, stdin=quiet, stdout=quiet, stderr=pipe, text=True, errors="replace", start_new_session=True
    ) as process:
        try:
            _, said = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            raise ClusterFailed(
                f"--ray {address}: no Ray cluster answers there within {patience_s:g} s; {remedy}"
            ) from None
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it ended without a word"]
        raise ClusterFailed(f"--ray {address}: Ray cannot connect ({lines[-1][:300]}); {remedy}")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidInput(
            f"--ray {address}: must be local, local:N, auto, HOST:PORT or ray://HOST:PORT, as in ray://10.0.0.1:10001"
        )
    return host.strip("[]"), int(port)


_ROOM = 107 - len("/shardwright-ray-12345678/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Most bytes of a temporary folder's path: that of a Unix socket has at most 107."""


@contextmanager
def session_folder() -> Iterator[Path]:
    """A new folder whose path leaves room for Ray's sockets in it: in the usual temporary folder, or in /tmp where that is too deep.

    Raises:
        ClusterFailed: neither can be used.
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
        for _ in range(20):  # what Ray started may still be writing its last lines
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            sleep(0.1)


_STORE_BYTES = 100 * 2**20
"""Shared memory of a cluster of this machine: jobs and results are small. Ray takes files where /dev/shm has less."""

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}

PATIENCE_S = 60.0
"""Seconds in which a cluster must answer; importing Ray alone takes some of them on a busy machine."""


@contextmanager
def open_cluster(address: str, *, patience_s: float = PATIENCE_S) -> Iterator[Cluster]:
    """Connect to a cluster; for "local", start one here and end it afterwards.

    Args:
        address: "local" (a worker for each core of this machine, at least 2), "local:N" (N workers), "auto" (the cluster that this
            machine is a node of), "HOST:PORT" (likewise, by the address of its head), or "ray://HOST:PORT" (from any machine).
        patience_s: how long a cluster may take to answer.

    Raises:
        MissingDependency: Ray is not installed.
        InvalidInput: the address is none.
        ClusterFailed: the cluster does not answer, or Ray does not start here.
    """
    if find_spec("ray") is None:
        raise MissingDependency(
            "--ray needs Ray, which is not installed; install it with: pip install 'shardwright[ray]'"
        )
    if address.partition(":")[0] == "local":
        with _local(address, _local_workers(address)):
            yield Cluster(address)
        return
    with _environment({"RAY_USAGE_STATS_ENABLED": "0"}):
        check_answers(address, patience_s)
        with _session(address, "cannot connect", "is the cluster up?", {"address": address}):
            yield Cluster(address)


def _local_workers(address: str) -> int:
    _, colon, count = address.partition(":")
    if not colon:
        return max(2, len(os.sched_getaffinity(0)))
    if not count.isdigit() or not 1 <= int(count) <= 1024:
        raise InvalidInput(f"--ray {address}: the number of workers must be 1 to 1024, as in local:4")
    return int(count)


@contextmanager
def _local(address: str, workers: int) -> Iterator[None]:
    """A cluster of this machine alone, that ends with the block and leaves nothing behind."""
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token()}
    options: dict[str, Any] = {
        "address": "local",
        "num_cpus": workers,
        "object_store_memory": _STORE_BYTES,
        "include_dashboard": False,
    }
    with _environment(settings), session_folder() as folder:
        options |= {"_temp_dir": str(folder), "_node_ip_address": "127.0.0.1"}
        with _session(address, "Ray does not start here", "leave --ray out, or use a cluster that runs", options):
            yield


@contextmanager
def _session(address: str, what: str, remedy: str, options: dict[str, Any]) -> Iterator[None]:
    """Ray, connected for the duration of a block; `what` happened if it cannot be. The signal handler that it replaces is put back."""
    import ray

    if ray.is_initialized():
        raise ClusterFailed(
            f"--ray {address}: this process is connected to a cluster already; call ray.shutdown() first"
        )
    from ray._private import ray_constants, worker

    handler = signal.getsignal(signal.SIGTERM)
    try:
        # Ray prints on stdout that a worker died, whatever it is told otherwise; stdout is for results.
        with _changed(worker, _worker_logs_enabled=False):
            try:
                # A node that shall have no others listens on the loopback interface; Ray does so by itself on systems other than Linux.
                alone = {"ENABLE_RAY_CLUSTER": False} if options["address"] == "local" else {}
                try:
                    with _changed(ray_constants, **alone):
                        ray.init(**_QUIET | options)
                except (RuntimeError, OSError, ValueError, ray.exceptions.RayError) as error:
                    said = (*str(error).split("\n"), type(error).__name__)
                    why = next(line.strip() for line in said if line.strip())
                    raise ClusterFailed(f"--ray {address}: {what} ({why}); {remedy}") from error
                yield
            finally:
                ray.shutdown()
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _changed(module: ModuleType, **settings: object) -> Iterator[None]:
    """Change settings of Ray that only its own modules have, for the duration of a block; none that a release has no more."""
    before = {name: getattr(module, name) for name in settings if hasattr(module, name)}
    vars(module).update({name: settings[name] for name in before})
    try:
        yield
    finally:
        vars(module).update(before)


@cache
def _token() -> str:
    """One token for the life of this process: Ray reads it once."""
    import secrets

    return secrets.token_hex(32)


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Set variables that are not set, for the duration of a block."""
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
