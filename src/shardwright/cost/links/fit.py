"""Latency and bandwidth of the links, fitted to measured collectives.

The model is that of `shardwright.cost.communication`, with the wait for devices that start late (as NeuroShard measures it):

    time of device d = max over devices of start − start of d
                       + max over {inside the host, between hosts} of  latency + max(bytes sent, bytes received) / bandwidth

where a link class counts only for devices that send or receive over it. All figures are non-negative. The loss is the relative error,
soft above 10% so that a collective that another process disturbed does not decide (`soft_l1` of `scipy.optimize.least_squares`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost.links.dataset import ALL_TO_ALL, KINDS, Collectives, Floats
from shardwright.errors import InvalidInput

FORWARD, BACKWARD = f"{ALL_TO_ALL}_forward", f"{ALL_TO_ALL}_backward"
FITS = (ALL_TO_ALL, FORWARD, BACKWARD, *KINDS[1:])
"""What is fitted: both passes of the all-to-all together, each of them, and the other collectives."""

FEWEST = 20
_SOFT = 0.1  # relative error above which a device's time counts less
_MB = 1e6
_LEAST_MS_PER_MB = 1e-6  # 1e15 bytes per second: no link is faster, and a bandwidth stays finite
_FIGURES = 4


@dataclass(frozen=True)
class LinkFit:
    """What a link class costs.

    Attributes:
        latency_ms: fixed cost of a collective.
        bandwidth: bytes per second.
    """

    latency_ms: float
    bandwidth: float


@dataclass(frozen=True)
class LinkFits:
    """Fitted link classes of one kind of collective.

    Attributes:
        intra: links inside a host; None where no sample used them.
        inter: links between hosts; likewise.
    """

    intra: LinkFit | None
    inter: LinkFit | None

    def predict(self, busiest: Floats, wait: Floats) -> Floats:
        """Times by the module's equation.

        Args:
            busiest: `(n, 2, D)` bytes by link class, the larger of sent and received.
            wait: `(n, D)` ms that each device waits for the last to start.

        Returns:
            `(n, D)` ms.

        Raises:
            InvalidInput: bytes go over a link class that was never measured.
        """
        figures = np.zeros(_FIGURES)
        for link, (name, fit) in enumerate((("inside a host", self.intra), ("between hosts", self.inter))):
            if fit is not None:
                figures[2 * link : 2 * link + 2] = fit.latency_ms, 1e3 * _MB / fit.bandwidth
            elif (busiest[:, link] > 0).any():
                raise InvalidInput(f"links {name} were not measured; collect collectives that use them")
        return _times(figures, busiest / _MB, wait)


def fit_links(parts: Sequence[Collectives]) -> dict[str, LinkFits]:
    """Fit every kind of collective that was measured at least 20 times.

    Args:
        parts: training collectives, of any numbers of devices.

    Returns:
        Fits by the names in `FITS`.
    """
    result = {}
    for name in FITS:
        passes = [measured for part in parts for measured in passes_of(part, name)]
        if sum(len(times) for _, _, times in passes) >= FEWEST:
            result[name] = _fit(passes)
    return result


def passes_of(collectives: Collectives, name: str) -> list[tuple[Floats, Floats, Floats]]:
    """Busiest bytes `(n, 2, D)`, wait `(n, D)` and ms `(n, D)` of the passes that a fit is made of."""
    chosen = collectives.of_kind(ALL_TO_ALL if name in (FORWARD, BACKWARD) else name)
    passes = []
    if name != BACKWARD:
        passes.append((chosen.busiest, chosen.wait, chosen.forward))
    if name in (ALL_TO_ALL, BACKWARD):
        passes.append((chosen.busiest, np.zeros_like(chosen.wait), chosen.backward))
    return passes


def predict(fits: Mapping[str, LinkFits], collectives: Collectives, name: str) -> tuple[Floats, Floats]:
    """`(k,)` predicted and `(k,)` measured ms of every device in every pass that belongs to a fit."""
    passes = passes_of(collectives, name)
    predicted = [fits[name].predict(busiest, wait).ravel() for busiest, wait, _ in passes]
    return np.concatenate(predicted), np.concatenate([times.ravel() for _, _, times in passes])


def _fit(passes: Sequence[tuple[Floats, Floats, Floats]]) -> LinkFits:
    """Latency and bandwidth of both classes, from passes of any numbers of devices."""
    from scipy.optimize import least_squares

    busiest = np.concatenate([b.transpose(0, 2, 1).reshape(-1, 2) for b, _, _ in passes]).T[None] / _MB  # (1, 2, k)
    wait, times = (np.concatenate([part[index].ravel() for part in passes])[None] for index in (1, 2))
    used = [bool((busiest[0, link] > 0).any()) for link in (0, 1)]
    start = np.concatenate([_line(busiest[0, link], (times - wait)[0]) for link in (0, 1)])
    least = np.tile([0.0, _LEAST_MS_PER_MB], 2)

    def residuals(figures: Floats) -> Floats:
        errors: Floats = ((_times(figures, busiest, wait) - times) / times).ravel()
        return errors

    scale = np.maximum(start, [1e-3, 1e-4] * 2)
    found = least_squares(
        residuals, np.maximum(start, least * 2), bounds=(least, np.inf), loss="soft_l1", f_scale=_SOFT, x_scale=scale
    ).x
    links = [LinkFit(float(latency), float(1e3 * _MB / slope)) for latency, slope in found.reshape(2, 2)]
    return LinkFits(links[0] if used[0] else None, links[1] if used[1] else None)


def _line(megabytes: Floats, times: Floats) -> Floats:
    """A first latency and ms a megabyte: a line through the times of devices that use the link class, by relative error."""
    from scipy.optimize import nnls

    inside = (megabytes > 0) & (times > 0)
    if not inside.any():
        return np.zeros(2)
    weighted = np.stack([np.ones(int(inside.sum())), megabytes[inside]], axis=1) / times[inside, None]
    unit = weighted.max(axis=0)
    figures: Floats = nnls(weighted / unit, np.ones(len(weighted)))[0] / unit
    return figures


def _times(figures: Floats, megabytes: Floats, wait: Floats) -> Floats:
    """`(n, D)` ms from `(4,)` latency and ms a megabyte of both classes, `(n, 2, D)` MB and `(n, D)` ms of wait."""
    latency, slope = figures[0::2, None], figures[1::2, None]
    times: Floats = wait + np.where(megabytes > 0, latency + megabytes * slope, 0.0).max(axis=1)
    return times
