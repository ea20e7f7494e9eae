"""Run `ip` and `tc` with a time limit, and report their errors."""

from __future__ import annotations

import subprocess

from shardwright.errors import MeasurementFailed

_LONGEST_S = 20.0


def run(*command: str) -> str:
    """Run a command and return its output.

    Raises:
        MeasurementFailed: the command is not installed, failed, or took too long.
    """
    shown = " ".join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    except FileNotFoundError:
        raise MeasurementFailed(f"{command[0]} is not installed; install iproute2") from None
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"`{shown}` took longer than {_LONGEST_S:g} s; look at the machine's load") from None
    if done.returncode:
        raise MeasurementFailed(
            f"`{shown}` failed: {done.stderr.strip() or done.stdout.strip()}; the test bed needs root, network namespaces, veth, "
            "bridge and tbf in the kernel"
        )
    return done.stdout
