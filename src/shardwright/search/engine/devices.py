"""Prices of devices from their sums, in compiled code. Letters: d devices, h hidden units of the cost model, q a piece's vector.

A device's state is a row of `sums` `(d, h + 2)`: the pre-activations of the hidden units and the linear parts of forward and backward
time, biases included; and of `served` `(d, 2)`: bytes of values and of ids it serves as the single holder of its pieces.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

PHASES = 4  # forward, forward communication, backward communication, backward
FORWARD, FORWARD_LINKS, BACKWARD_LINKS, BACKWARD = range(PHASES)
_DUST = 1e-3  # bytes: what is left of sums that cancel


@njit(cache=True, fastmath={"reassoc", "nsz"})
def kernel_times(sums: Floats, vector: Floats, sign: float, mix: Floats) -> tuple[float, float]:
    """Forward and backward ms of a device with `sums` `(h + 2,)` after adding `sign` times a piece's vector."""
    hidden = mix.shape[1]
    forward = float(sums[hidden] + sign * vector[hidden])
    backward = float(sums[hidden + 1] + sign * vector[hidden + 1])
    for unit in range(hidden):
        active = max(sums[unit] + sign * vector[unit], 0.0)
        forward += mix[0, unit] * active
        backward += mix[1, unit] * active
    return max(forward, 0.0), max(backward, 0.0)


@njit(cache=True, fastmath={"reassoc", "nsz"})
def kernel_times_of_swap(sums: Floats, out: Floats, into: Floats, mix: Floats) -> tuple[float, float]:
    """Forward and backward ms of a device after one piece has left and another has come."""
    hidden = mix.shape[1]
    forward = float(sums[hidden] - out[hidden] + into[hidden])
    backward = float(sums[hidden + 1] - out[hidden + 1] + into[hidden + 1])
    for unit in range(hidden):
        active = max(sums[unit] - out[unit] + into[unit], 0.0)
        forward += mix[0, unit] * active
        backward += mix[1, unit] * active
    return max(forward, 0.0), max(backward, 0.0)


@njit(cache=True)
def link_times(
    values: float, ids: float, host: Floats, total: Floats, device: int, other_traffic: Floats, links: Floats
) -> tuple[float, float]:
    """Forward and backward communication ms of a device, by the equations of `cost.communication`.

    Args:
        values: bytes of values the device serves.
        ids: bytes of ids it receives.
        host: `(2,)` the same of its whole host.
        total: `(2,)` the same of all devices.
        device: its rank.
        other_traffic: `(2 passes, 2 ways, 2 links, d)` bytes of fixed shards: sent and received, inside a host and between hosts.
        links: `(6,)` devices, devices a host, ms a byte inside and between hosts, latency in ms inside and between hosts.
    """
    devices, near = links[0], links[1]
    forward, backward = 0.0, 0.0
    for link in range(2):
        peers = near - 1 if link == 0 else devices - near
        values_out, ids_in = values / devices * peers, ids / devices * peers
        if link == 0:
            values_in, ids_out = (host[0] - values) / devices, (host[1] - ids) / devices
        else:
            values_in, ids_out = (total[0] - host[0]) / devices, (total[1] - host[1]) / devices
        other = other_traffic[:, :, link, device]
        busiest = max(values_out + ids_out + other[0, 0], values_in + ids_in + other[0, 1])
        if busiest > _DUST:
            forward = max(forward, links[4 + link] + busiest * links[2 + link])
        busiest = max(values_in + other[1, 0], values_out + other[1, 1])
        if busiest > _DUST:
            backward = max(backward, links[4 + link] + busiest * links[2 + link])
    return forward, backward
