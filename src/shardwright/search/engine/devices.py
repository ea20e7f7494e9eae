"""Prices of devices from their sums, in compiled code. Letters: d devices, h hidden units of the cost model, q a piece's vector.

A device's state is a row of `sums` `(d, h + 2)`: the pre-activations of the hidden units and the linear parts of forward and backward
time, biases included; and of `served` `(d, 2)`: bytes of values and of ids it serves as the single holder of its pieces.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.jit import inner, inner_with

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

PHASES = 4  # forward, forward communication, backward communication, backward
FORWARD, FORWARD_LINKS, BACKWARD_LINKS, BACKWARD = range(PHASES)
_DUST = 1e-3  # bytes: what is left of sums that cancel


@inner_with(fastmath={"reassoc", "nsz"})
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


@inner
def link_times(
    values: float,
    ids: float,
    values_near: float,
    ids_near: float,
    values_all: float,
    ids_all: float,
    reduced_near: float,
    reduced_far: float,
    links: Floats,
) -> tuple[float, float]:
    """Forward and backward communication ms of a device, by the equations of `cost.communication`.

    Args:
        values: bytes of values that the device serves, as the single holder of pieces.
        ids: bytes of ids it receives.
        values_near: the values of its whole host.
        ids_near: the ids of its whole host.
        values_all: the values of all devices.
        ids_all: the ids of all devices.
        reduced_near: bytes it sends inside its host to reduce gradients of replicas.
        reduced_far: the same between hosts.
        links: as in `state.Setting`.
    """
    devices, near = links[0], links[1]
    forward, backward = 0.0, 0.0
    for link in range(2):
        peers = near - 1 if link == 0 else devices - near
        values_out, ids_in = values / devices * peers, ids / devices * peers
        if link == 0:
            values_in, ids_out = (values_near - values) / devices, (ids_near - ids) / devices
        else:
            values_in, ids_out = (values_all - values_near) / devices, (ids_all - ids_near) / devices
        busiest = max(values_out + ids_out, values_in + ids_in)
        if busiest > _DUST:
            forward = max(forward, links[4 + link] + busiest * links[2 + link])
        busiest = max(values_in, values_out) + (reduced_near if link == 0 else reduced_far)
        if busiest > _DUST:
            backward = max(backward, links[4 + link] + busiest * links[2 + link])
    return forward, backward
