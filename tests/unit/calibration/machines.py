"""A machine with hidden times: those of a cost model, with errors for each table, for cuts, and for tables that lie together."""

from __future__ import annotations

import zlib

import numpy as np

from shardwright.cost.choice import cost_model_for
from shardwright.cost.model import CostModel
from shardwright.cost.score import device_ms
from shardwright.errors import MeasurementFailed
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.measure.measurer import OneByOne


class HiddenMachine(OneByOne):
    """Visits of a hidden truth, with noise.

    Args:
        seed: seed of the truth and of the noise.
        noise: noise of a visit, as a share.
        broken_above: works with more shards than this cannot be measured.
    """

    def __init__(self, seed: int, noise: float = 0.01, broken_above: int = 10**6) -> None:
        self.base: CostModel = cost_model_for("cpu")
        self.seed, self.noise, self.broken_above = seed, noise, broken_above
        self.visited: list[DeviceWork] = []
        self._rng = np.random.default_rng(seed)

    def truth(self, work: DeviceWork) -> np.ndarray:
        if not work.works:
            return np.zeros(2)
        alone = np.array([device_ms(self.base, [one]) for one in work.works])
        wrong = np.array([self._wrong(f"{one.pooling:.6g} {one.rows}") for one in work.works])
        share = 1 + 0.25 * (alone * wrong).sum(axis=0) / alone.sum(axis=0) + 0.05 * (len(work.works) - 6) / 6
        return np.array(device_ms(self.base, work.works)) * 1.3 * np.maximum(share, 0.1)

    def visit(self, work: DeviceWork) -> Visit:
        if len(work.works) > self.broken_above:
            raise MeasurementFailed("the kernel failed")
        self.visited.append(work)
        forward, backward = (self.truth(work) * (1 + self.noise * self._rng.standard_normal(2))).tolist()
        return Visit(forward, backward, 5, 1.0, 1.0, 0.0)

    def _wrong(self, table: str) -> np.ndarray:
        return np.random.default_rng([self.seed, zlib.crc32(table.encode())]).standard_normal(2)
