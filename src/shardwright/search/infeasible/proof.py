"""Is there provably no plan? Rule by rule, cheap ones first."""

from __future__ import annotations

from shardwright.errors import InfeasibleTask
from shardwright.search.infeasible.cliques import check_cliques
from shardwright.search.infeasible.crowd import check_crowds
from shardwright.search.infeasible.groups import groups_of
from shardwright.search.infeasible.packing import check_packing
from shardwright.task.task import Task


def prove_infeasible(task: Task) -> str | None:
    """The proof that no plan of the task exists, or None where none was found.

    It holds for every plan that the checker accepts, whatever strategy made it: what is proven here need not be searched for. None
    means nothing: packing is hard, and only bounds are looked at.

    1. The smallest block that the constraints allow of some table fits no device it may use, or no allowed way to shard it exists.
    2. Colocated tables need more devices than one of them may be spread over, or more memory than one device has.
    3. Tables confined to some devices need more memory than these have together.
    4. Tables that must stay whole do not fit the devices one by one.
    5. Tables of which no two may share a device find too few devices.

    Returns:
        The rule that is broken, the numbers and what would help.
    """
    try:
        groups = groups_of(task)
        check_crowds(task, groups)
        check_packing(groups)
        check_cliques(task, groups)
    except InfeasibleTask as proof:
        return str(proof)
    return None
