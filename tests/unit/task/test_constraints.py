import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

from shardwright.errors import InvalidInput
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology

NAMES = ("a", "b", "c", "d")


def pinned(**devices: tuple[int, ...]) -> dict[str, TableConstraint]:
    return {name: TableConstraint(devices=ranks) for name, ranks in devices.items()}


def test_colocated_groups_with_a_common_table_are_one() -> None:
    limits = Constraints(colocate=(("a", "b"), ("c", "d"), ("b", "c")))
    assert limits.colocated_groups() == [frozenset(NAMES)]
    assert Constraints(colocate=(("a", "b"), ("c", "d"))).colocated_groups() == [frozenset("ab"), frozenset("cd")]


def test_apart_pairs() -> None:
    assert Constraints(apart=(("a", "b", "c"),)).apart_pairs() == {frozenset("ab"), frozenset("ac"), frozenset("bc")}


def test_constraints_that_can_hold_together() -> None:
    Constraints(
        pinned(a=(0, 1), b=(1, 2), c=(0,), d=(3,)) | {},
        colocate=(("a", "b"),),
        apart=(("a", "c"), ("b", "c", "d")),
    ).check(NAMES, 4)


@pytest.mark.parametrize("devices", [[0, 1], {1, 0}, range(2), np.arange(2), (np.int64(0), np.int64(1)), iter((0, 1))])
def test_ranks_may_come_in_any_iterable(devices: object) -> None:
    limits = TableConstraint(devices=devices)  # type: ignore[arg-type]
    assert limits == TableConstraint(devices=(0, 1))
    assert hash(limits) == hash(TableConstraint(devices=(0, 1)))
    assert {type(rank) for rank in limits.devices or ()} == {int}


def test_ranks_keep_the_order_of_a_list() -> None:
    assert TableConstraint(devices=[2, 0]).devices == (2, 0)  # type: ignore[arg-type]


def test_sharding_types_may_come_in_any_iterable() -> None:
    limits = TableConstraint({"table_wise", "row_wise"})  # type: ignore[arg-type]
    assert limits.sharding_types == ("row_wise", "table_wise")


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (Constraints(pinned(x=(0,))), "table 'x' is not in the task; name one of its 4 tables"),
        (Constraints(colocate=(("a", "x"),)), "table 'x' is not in the task"),
        (Constraints(apart=(("x", "a"),)), "table 'x' is not in the task"),
        (Constraints(pinned(a=(1, 3))), "table 'a' is pinned to rank 3, the topology has ranks 0 to 2"),
        (
            Constraints(colocate=(("a", "b"), ("b", "c")), apart=(("c", "a"),)),
            "contradict each other: a and c are to be colocated and kept apart; drop one",
        ),
        (
            Constraints(pinned(a=(0, 1), b=(2,)), colocate=(("a", "b"),)),
            "contradict each other: a, b are to be colocated but pinned to devices without a common rank; pin them",
        ),
        (Constraints(apart=(NAMES,)), "4 tables are to be kept apart on 3 devices; allow at least as many devices"),
        (
            Constraints(pinned(a=(0, 1), b=(0, 1), c=(1,)), apart=(("a", "b", "c"),)),
            "3 tables are to be kept apart on 2 devices",
        ),
        (
            Constraints(pinned(a=(1,), b=(1,)), apart=(("a", "b", "c"),)),
            "a and b are to be kept apart but both pinned to rank 1; pin one to another rank",
        ),
    ],
)
def test_contradictions(constraints: Constraints, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        constraints.check(NAMES, 3)
    assert message in str(error.value)


def test_thousands_of_tables_kept_apart_are_checked_at_once() -> None:
    names = [f"t{i}" for i in range(20_000)]
    Constraints(apart=(tuple(names),), colocate=(("a", "t0"),)).check([*names, "a"], 30_000)


def task_with(limits: dict[str, TableConstraint]) -> Task:
    return Task(
        [Table(name, 10, 4) for name in NAMES], Topology(devices_per_host=4), 8, constraints=Constraints(limits)
    )


def test_checked_constraints_do_not_change_with_the_callers_mapping() -> None:
    limits = pinned(a=(0,))
    task = task_with(limits)
    limits["a"] = TableConstraint(devices=(99,))
    limits["no such table"] = TableConstraint()
    assert task.constraints == Constraints(pinned(a=(0,)))
    assert task == task_with(pinned(a=(0,)))


def test_limits_cannot_be_changed_in_place() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        Constraints(pinned(a=(0,))).tables["a"] = TableConstraint()  # type: ignore[index]


def test_equal_tasks_have_one_hash() -> None:
    one, other = task_with(pinned(a=(0,), b=(1,))), task_with(pinned(b=(1,), a=(0,)))
    assert one == other
    assert len({one, other, task_with(pinned(a=(0,)))}) == 2
    assert hash(one.constraints) == hash(other.constraints)


def test_the_mapping_is_as_good_as_the_dict_it_was_made_of() -> None:
    limits = pinned(a=(0,), b=(1,))
    tables = Constraints(limits).tables
    assert tables == limits
    assert limits == tables
    assert (list(tables), len(tables), dict(tables), repr(tables)) == (["a", "b"], 2, limits, repr(limits))
    assert tables.get("c") is None
    assert "c" not in tables


@pytest.mark.parametrize(
    "travel",
    [
        copy.copy,
        copy.deepcopy,
        replace,
        lambda task: replace(task, constraints=replace(task.constraints, apart=())),
        *(
            lambda task, p=protocol: pickle.loads(pickle.dumps(task, p))
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
    ],
)
def test_constraints_can_be_copied_and_sent_to_other_processes(travel) -> None:  # type: ignore[no-untyped-def]
    task = task_with(pinned(a=(0,), b=(1, 2)))
    there = travel(task)
    assert there == task
    assert hash(there) == hash(task)
    assert there.constraints.of("b").devices == (1, 2)
