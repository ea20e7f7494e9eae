"""Prices of the resources of the mean device: the dual variables of the bound's linear program, with which searches choose ways."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.collectives import prices_of
from shardwright.cost.model import Pricing
from shardwright.sharding.costs import KERNELS
from shardwright.task.task import Task
from shardwright.task.topology import Topology

ALL_PHASES = np.ones(4)  # in the order of `sharding.costs.PHASES`
KINDS = [1, 2, 1]  # the phases in which values, gradients and ids travel


@dataclass(frozen=True)
class Prices:
    """Prices of a plan's sums and links on the mean device.

    Attributes:
        vector: `(calls, h + 2)` ms a unit of each sum of each fused call.
        links: `(3, 2)` weight of each link class (columns) for values, gradients and ids (rows). Each row sums to 1, or to 0 without
            links, or to less if dense layers hide this kind of traffic in part.
    """

    vector: Floats
    links: Floats


def first_prices(task: Task, mix: Floats, calls: int, phases: Floats = ALL_PHASES) -> Prices:
    """Prices to begin with: half of every hidden unit, all link classes alike."""
    present = (peers_of(task.topology) > 0).astype(float)
    links = np.tile(present / max(1.0, present.sum()), (3, 1)) * phases[KINDS, None]
    return Prices(np.tile(np.append(phases[KERNELS] @ mix / 2, phases[KERNELS]), (calls, 1)), links)


def tangents(pricing: Pricing, prices: Prices) -> tuple[Floats, Floats]:
    """`(2, calls, h + 2)` slopes and `(calls, 2)` intercepts of forward and backward time, with hidden units as active as in `prices`."""
    mix = pricing.mix.sum(axis=0)
    active = np.divide(prices.vector[:, :-2], mix, out=np.zeros_like(prices.vector[:, :-2]), where=mix > 0)
    ones = np.ones((len(active), 1))
    slopes = np.stack([np.hstack([pricing.mix[phase] * active, ones * np.eye(2)[phase]]) for phase in range(2)])
    return slopes, active @ (pricing.mix * pricing.hidden_bias).T + pricing.bias


def link_prices(task: Task, prices: Prices, *, own: bool = False) -> Floats:
    """`(2, 5)` ms times devices, forward and backward, of the traffic that ways add to the links: *link terms*.

    These are bytes of values that all-to-alls serve to near and to far devices, bytes of ids, and ms of other collectives, forward and
    backward. All devices together send `peers / D` of the bytes that are served. With `own`, traffic counts as much as it takes on its
    device, which may be less than it takes on the mean device.
    """
    each = pass_ms(task, own=own)
    near, far = (prices.links[:2] * each).T
    apart = prices.links[:2].sum(axis=1)
    ids = np.array([(prices.links[2] * each[0]).sum(), 0.0])
    return np.stack([near, far, ids, apart * [1.0, 0.0], apart * [0.0, 1.0]], axis=1)


def served_price(task: Task, prices: Prices) -> Floats:
    """`(3,)` ms times devices of a byte of values that all-to-alls serve to near and to far devices, and of a byte of ids."""
    price: Floats = link_prices(task, prices)[:, :3].sum(axis=0)
    return price


def piece_links(served: Floats) -> Floats:
    """`(n, 5)` link terms of pieces that serve `(n, 2)` bytes of values and of ids."""
    return np.hstack([served[:, [0, 0, 1]], np.zeros_like(served)])


def peers_of(topology: Topology) -> Floats:
    """`(2,)` the other devices of a host, and the devices of other hosts, as shares of all devices."""
    near, devices = topology.devices_per_host, topology.devices
    return np.array([near - 1, devices - near]) / devices


def pass_ms(task: Task, *, own: bool = False) -> Floats:
    """`(2, 2)` ms that a served byte of values adds to the links of all devices together, or of its own device, by pass and link class."""
    prices = prices_of(task)
    of_own = np.stack([prices.forward, prices.backward])
    ms: Floats = (of_own if own else np.maximum(of_own, prices.mean)) * peers_of(task.topology)
    return ms
