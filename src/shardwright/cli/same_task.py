"""Is a plan a plan for this very task?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from shardwright.errors import InvalidInput
from shardwright.sharding import Plan
from shardwright.task import Table, Task

_SHOWN = 5
_IN_PARTS = ("tables", "topology", "constraints")
"""Fields of a task of which it is said what differs in them, or that something does."""


def check_same_task(plan: Plan, plan_file: object, task: Task, task_file: object) -> None:
    """Check that a plan answers a task, not an older version of it or another one.

    Raises:
        InvalidInput: they differ; the message says in what.
    """
    found = list(differences(plan.task, task))
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise InvalidInput(
            f"{plan_file}: a plan for another task than {task_file} ({'; '.join(found[:_SHOWN])}{more}); plan this task anew"
        )


def differences(planned: Task, task: Task) -> Iterator[str]:
    """What differs between the task a plan was made for and a given one, in words; the order of tables is immaterial."""
    for field in (one.name for one in fields(task) if one.name not in _IN_PARTS):
        if getattr(planned, field) != getattr(task, field):
            yield f"{field} is {getattr(planned, field)} in the plan, {getattr(task, field)} in the task"
    for field in (one.name for one in fields(task.topology)):
        if getattr(planned.topology, field) != getattr(task.topology, field):
            yield f"topology: {field} differs"
    for name, table in planned.table_by_name.items():
        if name not in task.table_by_name:
            yield f"the task has no table '{name}'"
        else:
            yield from _table_differences(table, task.table_by_name[name])
    yield from (f"the plan has no table '{name}'" for name in task.table_by_name if name not in planned.table_by_name)
    if planned.constraints != task.constraints:
        yield "constraints differ"


def _table_differences(planned: Table, table: Table) -> Iterator[str]:
    for field in (one.name for one in fields(table)):
        before, after = getattr(planned, field), getattr(table, field)
        if before != after:
            yield f"table '{table.name}': " + (
                f"{field} differs" if field == "access" else f"{field} is {before}, not {after}"
            )
