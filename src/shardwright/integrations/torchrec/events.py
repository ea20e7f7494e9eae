"""Report plans: TorchRec's event logging, and statistics of a plan or of a failure to plan."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torchrec.distributed.planner import planners
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.types import ParameterConstraints, PlanDebugStats, ShardingOption, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.planner.utils import bytes_to_gb
from torchrec.distributed.types import ShardingPlan, ShardingType

from shardwright.errors import some_of
from shardwright.integrations.torchrec.problem import TorchRecProblem

_Method = TypeVar("_Method", bound=Callable[..., Any])


def logged(method: _Method) -> _Method:
    """Wrap a planner's method to tell TorchRec's event logging when it begins and how it ends. TorchRec 1.6 has no such logging."""
    handler = getattr(planners, "EventLoggingHandler", None)
    if handler is None:
        return method
    wrapped: _Method = handler.event_logger(planners.TorchrecComponent.PLANNER)(method)
    return wrapped


class PlannerEvents:
    """Report one plan to TorchRec's event handlers."""

    def __init__(self, planner_type: str, constraints: Mapping[str, ParameterConstraints] | None) -> None:
        self._planner = {"planner_type": planner_type}
        self._constraints = dict(constraints or {})
        self._technique = {}
        if hasattr(planners, "detect_technique"):
            self._technique = {"technique": planners.detect_technique(list(self._constraints.values()))}

    def begins(
        self, topology: TorchRecTopology, left: TorchRecTopology, reservation: StorageReservation, **config: object
    ) -> None:
        """Log the reserved storage and the planner's settings."""
        dense, inputs = (getattr(reservation, name, None) for name in ("_dense_storage", "_kjt_storage"))
        _tell(
            "log_storage_reservation",
            reservation_type=type(reservation).__name__,
            percentage=getattr(reservation, "_percentage", None),
            dense_hbm_bytes=dense.hbm if dense else None,
            kjt_hbm_bytes=inputs.hbm if inputs else None,
            original_hbm_per_rank=topology.devices[0].storage.hbm,
            available_hbm_per_rank=left.devices[0].storage.hbm,
            **self._planner,
            **self._technique,
        )
        told = self._planner | _text(config | {"num_table_constraints": len(self._constraints)})
        _tell("log_planner_config", told, **self._technique)
        if self._constraints:
            _tell("log_table_constraints", self._constraints, **self._planner, **self._technique)

    def planned(self, options: Sequence[ShardingOption], **figures: object) -> None:
        """Log the plan."""
        types = json.dumps(Counter(option.sharding_type for option in options))
        told = {"success": True, "num_shardable_tables": len(options), "sharding_type_distribution": types}
        _tell("log_planning_result", **self._planner, **self._technique, **_text(told | figures))
        for name in ("log_offloading_summary", "log_table_assignment"):
            _tell(name, options, **self._planner, **self._technique)
        for name in ("log_ssd_offloading_config", "log_mpzch_summary", "log_kvzch_summary"):
            _tell(name, options)

    def failed(self, error_type: str, message: str, **figures: object) -> None:
        """Log the reason for a failure to plan."""
        told = {"success": False, "error_type": error_type, "error_message": message}
        _tell("log_planning_result", **self._planner, **self._technique, **_text(told | figures))


def _tell(name: str, *values: object, **fields: object) -> None:
    log = getattr(planners, name, None)
    if log is not None:
        log(*values, **fields)


def _text(fields: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}


_LOGGER = logging.getLogger(__name__)
_PROPOSALS = 2  # row of TorchRec's page with the number of proposals


@dataclass
class SearchStats(PlanDebugStats):
    """The `debug_stats` that `Stats.log` gets. All fields are None for a loaded plan, and if there is no plan.

    Attributes:
        strategy: the strategy that found the plan.
        step_ms: predicted time of a step.
        bound_ms: proven bound: no plan takes less by the same cost model; None also without a proof.
        gap: how far, at most, the plan is from the best possible one.
    """

    strategy: str | None = None
    step_ms: float | None = None
    bound_ms: float | None = None
    gap: float | None = None

    def line(self) -> str:
        """One line for people; empty without a step."""
        if self.step_ms is None:
            return ""
        proven = "no bound" if self.gap is None else f"bound {self.bound_ms:.3f} ms, gap {self.gap:.1%}"
        return f"--- Strategy {self.strategy}: predicted step {self.step_ms:.3f} ms, {proven} ---"


def log_replicas(plan: ShardingPlan, problem: TorchRecProblem) -> None:
    """Log the replicated tables, which TorchRec trains with the dense optimizer; as a warning if one of them names another optimizer."""
    replicated = [
        place
        for place in problem.places.values()
        if plan.plan[place.path][place.name].sharding_type == ShardingType.DATA_PARALLEL.value
    ]
    named = sorted({place.table.optimizer for place in replicated if place.table.optimizer})
    if replicated:
        _LOGGER.log(
            logging.WARNING if named else logging.INFO,
            "data_parallel tables are trained by the model's dense optimizer%s: %s",
            f", not by {' or '.join(named)}" if named else "",
            some_of([place.fqn for place in replicated]),
        )


class SearchPage(EmbeddingStats):
    """TorchRec's page, with the predicted step, its bound and the gap below the number of proposals."""

    def log(self, *values: Any, **fields: Any) -> None:
        """Log the page; see TorchRec's `EmbeddingStats`."""
        super().log(*values, **fields)
        stats = fields.get("debug_stats")
        said = stats.line() if isinstance(stats, SearchStats) else ""
        if said:
            self._stats_table.insert(_PROPOSALS + 1, f"#{said: ^{self._width - 2}}#")
            _LOGGER.info(said)


def reservation_line(reservation: StorageReservation) -> str:
    """The part of each device that a reservation keeps. Errors show it, because too large a reservation may leave no plan."""
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
