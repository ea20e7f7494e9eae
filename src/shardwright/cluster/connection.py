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

from shardwright.cluster.jobs import Cluster
from shardwright.errors import ClusterFailed, InvalidInput, MissingDependency

_ASK = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False, logging_level='error'); ray.nodes(); ray.shutdown()"
_CONNECT_S = 5.0


def check_answers(address: str, patience_s: float) -> None:
    """Check that a cluster answers.

    Args:
        address: "auto", "HOST:PORT" or "ray://HOST:PORT".
        patience_s: how long it may take.

    Raises:
        InvalidInput: the address is none.
        ClusterFailed: it does not answer in time, or refuses.
    """
    if address != "auto":
        _check_listening(address, *_host_and_port(address), min(patience_s, _CONNECT_S))
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _ASK, address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            _, said = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            raise ClusterFailed(
                f"--ray {address}: no Ray cluster answers there within {patience_s:g} s; {_remedy(address)}"
            ) from None
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise ClusterFailed(f"--ray {address}: Ray cannot connect ({_reason(said)}); {_remedy(address)}")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidInput(
            f"--ray {address}: must be local, local:N, auto, HOST:PORT or ray://HOST:PORT, as in ray://10.0.0.1:10001"
        )
    return host.strip("[]"), int(port)


def _check_listening(address: str, host: str, port: int, timeout_s: float) -> None:
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise ClusterFailed(f"--ray {address}: nothing answers there ({reason}); {_remedy(address)}") from error


def _reason(said: str) -> str:
    """The last line that says something: that of the exception."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it ended without a word"


def _remedy(address: str) -> str:
    if address == "auto":
        return "start a cluster with: ray start --head, or use --ray local"
    if address.startswith("ray://"):
        return "check host and port (of the Ray client server, usually 10001), and that both sides have the same version of Ray"
    return (
        "check host and port (of the head, usually 6379); from a machine that is no node of the cluster, use "
        "ray://HOST:10001; on this machine alone, use --ray local"
    )


_LONGEST_SOCKET = 107  # bytes of the path of a Unix socket
_BELOW = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_PREFIX = "shardwright-ray-"
_RANDOM = 8  # characters that `tempfile.mkdtemp` adds


@contextmanager
def session_folder() -> Iterator[Path]:
    """A new folder whose path leaves room for Ray's sockets in it: in the usual temporary folder, or in /tmp where that is too deep.

    Raises:
        ClusterFailed: neither can be used.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_base()))
    try:
        yield folder
    finally:
        for _ in range(20):  # what Ray started may still be writing its last lines
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            sleep(0.1)


def _base() -> Path:
    """The first folder that is short enough and can be written."""
    bases = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")]  # noqa: S108  (mkdtemp makes a private folder)
    room = _LONGEST_SOCKET - _BELOW - len(f"/{_PREFIX}") - _RANDOM
    for base in bases:
        if len(os.fsencode(base)) <= room and os.access(base, os.W_OK | os.X_OK):
            return base
    raise ClusterFailed(
        f"--ray local: the path of a temporary folder may have {room} bytes, {bases[0]} has {len(os.fsencode(bases[0]))}; "
        "set TMPDIR to a folder with a shorter path"
    )


_STORE_BYTES = 100 * 2**20
"""Shared memory of a cluster of this machine: jobs and results are small. Ray takes files where /dev/shm has less."""

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
    kind, _, count = address.partition(":")
    if kind == "local":
        with _local(address, _local_workers(address, count)) as cluster:
            yield cluster
    else:
        with _connected(address, patience_s) as cluster:
            yield cluster


def _local_workers(address: str, count: str) -> int:
    if not count and ":" not in address:
        return max(2, len(os.sched_getaffinity(0)))
    if not count.isdigit() or not 1 <= int(count) <= 1024:
        raise InvalidInput(f"--ray {address}: the number of workers must be 1 to 1024, as in local:4")
    return int(count)


@contextmanager
def _local(address: str, workers: int) -> Iterator[Cluster]:
    """A cluster of this machine alone, that ends with the block and leaves nothing behind."""
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token()}
    with _environment(settings), session_folder() as folder, _session(address) as ray:
        from ray._private import ray_constants

        try:
            # A node that shall have no others listens on the loopback interface; Ray does so by itself on systems other than Linux.
            with _changed(ray_constants, "ENABLE_RAY_CLUSTER", False):
                ray.init(
                    address="local",
                    num_cpus=workers,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="error",
                    object_store_memory=_STORE_BYTES,
                    _temp_dir=str(folder),
                    _node_ip_address="127.0.0.1",
                )
        except (RuntimeError, OSError, ValueError, ray.exceptions.RayError) as error:
            raise ClusterFailed(
                f"--ray {address}: Ray does not start here ({_first_line(error)}); leave --ray out, or use a cluster that runs"
            ) from error
        yield Cluster(address, workers)


@contextmanager
def _connected(address: str, patience_s: float) -> Iterator[Cluster]:
    """A cluster that others started; it goes on running after the block."""
    with _environment({"RAY_USAGE_STATS_ENABLED": "0"}):
        check_answers(address, patience_s)
        with _session(address) as ray:
            try:
                ray.init(address=address, log_to_driver=False, logging_level="error")
            except (RuntimeError, OSError, ValueError, ray.exceptions.RayError) as error:  # gone since it was asked
                raise ClusterFailed(
                    f"--ray {address}: cannot connect ({_first_line(error)}); is the cluster up?"
                ) from error
            yield Cluster(address, max(1, int(ray.cluster_resources().get("CPU", 0))))


@contextmanager
def _session(address: str) -> Iterator[ModuleType]:
    """The package Ray, disconnected after the block, with the signal handler that it replaces put back."""
    import ray

    if ray.is_initialized():
        raise ClusterFailed(
            f"--ray {address}: this process is connected to a cluster already; call ray.shutdown() first"
        )
    from ray._private import worker

    handler = signal.getsignal(signal.SIGTERM)
    try:
        # Ray prints on stdout that a worker died, whatever it is told otherwise; stdout is for results.
        with _changed(worker, "_worker_logs_enabled", False):
            try:
                yield ray
            finally:
                ray.shutdown()
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _changed(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Change a setting of Ray that only its own modules have, for the duration of a block; nothing where a release has it no more."""
    if not hasattr(module, name):
        yield
        return
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


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
