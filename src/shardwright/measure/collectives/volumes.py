"""The bytes that a collective puts on the links of each device, inside its host and between hosts.

With D devices on h hosts of p, and a whole buffer of N bytes:

- all-to-all: device d holds dim_d columns of all B samples and sends those of the B / D samples of every other device; 4 bytes a value.
- all-gather (from N / D bytes a device to N) and reduce-scatter (the reverse): hierarchical, (p - 1) / p N inside the host and
  (h - 1) / h N / p between hosts; with one host, (D - 1) / D N.
- all-reduce of N bytes: one after the other, so twice that.

The latter are the volumes of the usual ring algorithms (Thakur et al., 2005, "Optimization of Collective Communication Operations in
MPICH"), whatever the library does inside: a time is always compared with the bytes that have to travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

VALUE_BYTES = 4
"""fp32, in which embeddings and their gradients travel."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Volumes:
    """Bytes of one collective, of the forward pass for all-to-all; its backward pass sends what the forward pass received.

    Attributes:
        buffer: `(devices,)` size of the device's own input buffer.
        sent: `(2, devices)` sent inside the host and between hosts, what stays on the device excluded.
        received: `(2, devices)` received likewise.
    """

    buffer: Ints
    sent: Ints
    received: Ints


def samples_of(batch_size: int, devices: int) -> list[int]:
    """Samples of a batch that belong to each device; the first ones get one more where it does not divide."""
    share, rest = divmod(batch_size, devices)
    return [share + (device < rest) for device in range(devices)]


def all_to_all_volumes(batch_size: int, dims: Sequence[int], hosts: int) -> Volumes:
    """The volumes of the forward all-to-all of pooled embeddings.

    Args:
        batch_size: samples over all devices.
        dims: `(devices,)` dim sums.
        hosts: hosts, each with as many devices in a row.
    """
    devices = len(dims)
    moved = VALUE_BYTES * np.outer(dims, samples_of(batch_size, devices)).astype(np.int64)  # from device, to device
    buffer = moved.sum(axis=1)
    np.fill_diagonal(moved, 0)
    host = np.arange(devices) // (devices // hosts)
    intra = np.where(host[:, None] == host[None, :], moved, 0)
    inter = moved - intra
    sent = np.stack([intra.sum(axis=1), inter.sum(axis=1)])
    received = np.stack([intra.sum(axis=0), inter.sum(axis=0)])
    return Volumes(buffer, sent, received)


def ring_volumes(elements: int, devices: int, hosts: int, *, gathers: bool, reduces: bool) -> Volumes:
    """The volumes of an all-gather, a reduce-scatter, or both one after the other: an all-reduce.

    Args:
        elements: values in the whole buffer.
        devices: devices.
        hosts: hosts of as many devices each.
        gathers: every device ends with the whole buffer.
        reduces: every device starts with a whole buffer, and the buffers are added up.
    """
    whole, per_host = VALUE_BYTES * elements, devices // hosts
    passes = gathers + reduces
    intra = passes * whole * (per_host - 1) // per_host
    inter = passes * whole * (hosts - 1) // (hosts * per_host)
    links = np.repeat(np.array([[intra], [inter]], dtype=np.int64), devices, axis=1)
    buffer = np.full(devices, whole if reduces else whole // devices, dtype=np.int64)
    return Volumes(buffer, links, links.copy())
