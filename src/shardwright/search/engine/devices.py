"""Prices of devices from their sums, in compiled code. Letters: d devices, c kinds of fused calls, h hidden units of the cost model.

A device's state is a row of `sums` `(d, c, h + 2)`: for each call the pre-activations of the hidden units and the linear parts of forward
and backward time, biases included; of `counts` `(d, c)`: the pieces that are in the call; of `priced` `(d, c, 2)`: its forward and
backward ms, 0 where nothing is in it; and of `served` `(d, 2)`: bytes of values and of ids it serves as the single holder of its pieces.

What a row of pieces adds to calls are its *parts*, `[part[row], part[row + 1])`: one, as a rule; of colocated tables one for each call
that serves some of them. Part i adds `vectors[i]` `(h + 2,)` to call `call[i]`.
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
STALE = -1.0  # stands for the ms of a call whose sums have changed
_DUST = 1e-3  # bytes: what is left of sums that cancel


@inner_with(fastmath={"reassoc", "nsz"})
def kernel_times(sums: Floats, vector: Floats, sign: float, mix: Floats) -> tuple[float, float]:
    """Forward and backward ms of a call with `sums` `(h + 2,)` after adding `sign` times a vector."""
    hidden = mix.shape[1]
    forward = float(sums[hidden] + sign * vector[hidden])
    backward = float(sums[hidden + 1] + sign * vector[hidden + 1])
    for unit in range(hidden):
        active = max(sums[unit] + sign * vector[unit], 0.0)
        forward += mix[0, unit] * active
        backward += mix[1, unit] * active
    return max(forward, 0.0), max(backward, 0.0)


@inner_with(fastmath={"reassoc", "nsz"})
def traded_times(sums: Floats, out: Floats, into: Floats, mix: Floats) -> tuple[float, float]:
    """Forward and backward ms of a call with `sums` `(h + 2,)` after the vector `out` has left it and `into` has come."""
    hidden = mix.shape[1]
    forward = float(sums[hidden] - out[hidden] + into[hidden])
    backward = float(sums[hidden + 1] - out[hidden + 1] + into[hidden + 1])
    for unit in range(hidden):
        active = max(sums[unit] - out[unit] + into[unit], 0.0)
        forward += mix[0, unit] * active
        backward += mix[1, unit] * active
    return max(forward, 0.0), max(backward, 0.0)


@inner
def times_after(
    device: int,
    out: int,
    into: int,
    forward: float,
    backward: float,
    part: Ints,
    call: Ints,
    vectors: Floats,
    sums: Floats,
    counts: Ints,
    priced: Floats,
    mix: Floats,
) -> tuple[float, float]:
    """Forward and backward ms of a device after a row of pieces has left it and another has come: only the calls they are in change.

    Args:
        device: the device.
        out: the row that leaves, or -1.
        into: the row that comes, or -1.
        forward: ms before.
        backward: ms before.
        part: this and the next two say what rows add to calls.
        call: see above.
        vectors: see above.
        sums: this and the next two are the state; no call of the device may be stale.
        counts: see above.
        priced: see above.
        mix: `(2, h)`.
    """
    first_out, last_out = (part[out], part[out + 1]) if out >= 0 else (0, 0)
    first_into, last_into = (part[into], part[into + 1]) if into >= 0 else (0, 0)
    for new in range(first_into, last_into):
        kind, old = call[new], -1
        for other in range(first_out, last_out):
            if call[other] == kind:
                old = other
        if old < 0:
            now = kernel_times(sums[device, kind], vectors[new], 1.0, mix)
        else:
            now = traded_times(sums[device, kind], vectors[old], vectors[new], mix)
        forward += now[0] - priced[device, kind, 0]
        backward += now[1] - priced[device, kind, 1]
    for old in range(first_out, last_out):
        kind, stays = call[old], False
        for other in range(first_into, last_into):
            stays = stays or call[other] == kind
        if not stays:
            forward -= priced[device, kind, 0]
            backward -= priced[device, kind, 1]
            if counts[device, kind] > 1:
                now = kernel_times(sums[device, kind], vectors[old], -1.0, mix)
                forward += now[0]
                backward += now[1]
    return forward, backward


@inner
def book_parts(
    device: int,
    row: int,
    sign: int,
    part: Ints,
    call: Ints,
    vectors: Floats,
    base: Floats,
    sums: Floats,
    counts: Ints,
    priced: Floats,
) -> None:
    """Add a row of pieces to the calls of a device, or take it off; `base` `(h + 2,)` are the sums of a call with nothing in it."""
    for one in range(part[row], part[row + 1]):
        kind = call[one]
        counts[device, kind] += sign
        empty = counts[device, kind] == 0
        for column in range(base.size):
            if empty:  # what rounding left of sums that cancel goes
                sums[device, kind, column] = base[column]
            else:
                sums[device, kind, column] += sign * vectors[one, column]
        priced[device, kind, 0] = STALE


@inner
def times_of(device: int, once: Floats, sums: Floats, counts: Ints, priced: Floats, mix: Floats) -> tuple[float, float]:
    """Forward and backward ms of a device; calls that are stale are priced anew. `once` `(2,)` every device pays."""
    forward, backward = once[0], once[1]
    for kind in range(counts.shape[1]):
        if priced[device, kind, 0] == STALE:
            priced[device, kind, 0], priced[device, kind, 1] = 0.0, 0.0
            if counts[device, kind] > 0:
                now = kernel_times(sums[device, kind], sums[device, kind], 0.0, mix)
                priced[device, kind, 0], priced[device, kind, 1] = now
        forward += priced[device, kind, 0]
        backward += priced[device, kind, 1]
    return forward, backward


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
