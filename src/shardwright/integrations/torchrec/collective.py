"""Planning on one rank for all: the plan, or why there is none, goes to every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
from torchrec.distributed.types import ShardingPlan


def on_first_rank(make: Callable[[], ShardingPlan], group: dist.ProcessGroup | None) -> ShardingPlan:
    """What `make` returns on the first rank of a process group, on all of its ranks.

    TorchRec's planner leaves the other ranks waiting where planning fails; here they fail too, with the same message.

    Raises:
        PlannerError: `make` failed on the first rank; that rank raises what `make` raised.
    """
    found: list[Any] = [None, None]
    failed: Exception | None = None
    if dist.get_rank(group) == 0:
        try:
            found[0] = make()
        except Exception as error:
            failed = error
            found[1] = (getattr(error, "error_type", PlannerErrorType.OTHER), str(error))
    first = dist.get_global_rank(group, 0) if group is not None else 0
    dist.broadcast_object_list(found, first, group=group)
    if failed is not None:
        raise failed
    plan, why = found
    if why is not None:
        raise PlannerError(f"planning failed on the first rank: {why[1]}", why[0])
    if not isinstance(plan, ShardingPlan):
        raise PlannerError("the first rank sent no sharding plan; call collective_plan on all ranks of the group")
    return plan
