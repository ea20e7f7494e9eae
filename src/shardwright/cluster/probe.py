"""Whether a cluster answers, asked by a process of its own: Ray may wait for ever, or end the process that asks, where none does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from shardwright.errors import ClusterFailed, InvalidInput

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
