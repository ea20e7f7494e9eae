"""Statistics of a plan, or of there being none: TorchRec's page, and what our search knows besides."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.types import PlanDebugStats, StorageReservation
from torchrec.distributed.planner.utils import bytes_to_gb

_LOGGER = logging.getLogger(__name__)
_PROPOSALS = 2  # the row of TorchRec's page that says how many proposals there were


@dataclass
class SearchStats(PlanDebugStats):
    """What `Stats.log` gets as `debug_stats`; all None for a loaded plan and where there is no plan.

    Attributes:
        strategy: what found the plan.
        step_ms: predicted time of a step.
        bound_ms: no plan is below it, by the same cost model; None also where nothing is proven.
        gap: how far, at most, the plan is from the best possible one.
    """

    strategy: str | None = None
    step_ms: float | None = None
    bound_ms: float | None = None
    gap: float | None = None

    def line(self) -> str:
        """One line for people; empty where there is nothing to say."""
        if self.step_ms is None:
            return ""
        proven = "no bound" if self.gap is None else f"bound {self.bound_ms:.3f} ms, gap {self.gap:.1%}"
        return f"--- Strategy {self.strategy}: predicted step {self.step_ms:.3f} ms, {proven} ---"


class SearchPage(EmbeddingStats):
    """TorchRec's page, with the predicted step, its bound and the gap below the number of proposals."""

    def log(self, *values: Any, **fields: Any) -> None:
        """Log the page; see TorchRec's `EmbeddingStats`."""
        super().log(*values, **fields)
        found = fields.get("debug_stats")
        said = found.line() if isinstance(found, SearchStats) else ""
        if said:
            self._stats_table.insert(_PROPOSALS + 1, f"#{said: ^{self._width - 2}}#")
            _LOGGER.info(said)


def reservation_line(reservation: StorageReservation) -> str:
    """How much of each device a reservation keeps, for errors: where there is no plan, it may be too much."""
    fixed, share = (getattr(reservation, name, None) for name in ("_hbm_reserved_bytes", "_percentage"))
    if fixed is not None:
        kept = f"{bytes_to_gb(fixed):.3g} GB per device"
    else:
        kept = f"{share:.0%} of each device" if share is not None else "a part of each device"
    others = {"dense tensors": "_dense_storage", "inputs": "_kjt_storage"}
    for what, name in others.items():
        held = getattr(reservation, name, None)
        if held is not None:
            kept += f", {bytes_to_gb(max(held.hbm, held.ddr)):.3g} GB for {what}"
    return f"storage reservation {type(reservation).__name__}: {kept}"
