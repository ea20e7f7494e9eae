import numpy as np
import pytest

from shardwright.errors import InvalidInput
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology

TABLES = (Table("a", 10, 4), Table("b", 20, 8))


def test_tables_by_name() -> None:
    task = Task(list(TABLES), Topology(), 64)
    assert task.tables == TABLES
    assert task.table_by_name == {"a": TABLES[0], "b": TABLES[1]}
    assert task.optimizer == "rowwise_adagrad"


def test_equal_tasks() -> None:
    assert Task(TABLES, Topology(), 64) == Task(TABLES, Topology(), 64)
    assert Task(TABLES, Topology(), 64) != Task(TABLES, Topology(), 65)
    assert Task(TABLES, Topology(), 64) != Task(TABLES[::-1], Topology(), 64)


def test_a_batch_size_of_numpy_becomes_plain() -> None:
    task = Task(TABLES, Topology(), np.int64(64))  # type: ignore[arg-type]
    assert task == Task(TABLES, Topology(), 64)
    assert type(task.batch_size) is int


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tables": ()}, "tables: a task needs at least one table"),
        ({"tables": (*TABLES, Table("a", 5, 5))}, "the name 'a' occurs twice; table names must be unique"),
        ({"batch_size": 0}, "batch_size is 0, must be a whole number from 1"),
        ({"batch_size": -4}, "batch_size is -4"),
        ({"batch_size": 4.0}, "batch_size is 4.0"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": np.float64(4)}, "batch_size is np.float64(4.0)"),
        ({"batch_size": 10**400}, "batch_size is 1000"),
        ({"optimizer": "lamb"}, "optimizer is 'lamb', must be one of sgd, rowwise_adagrad, adagrad, adam"),
        ({"tables": (Table("a", 10, 4, 1e300),)}, "pooling 1e+300 × dim 4 looks up more than 2**50 elements a step"),
        ({"constraints": Constraints({"x": TableConstraint()})}, "table 'x' is not in the task"),
        ({"constraints": Constraints({"a": TableConstraint(devices=(9,))})}, "rank 9, the topology has ranks 0 to 0"),
    ],
)
def test_bad_tasks(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Task(**({"tables": TABLES, "topology": Topology(), "batch_size": 64} | changes))  # type: ignore[arg-type]
    assert message in str(error.value)
    assert len(str(error.value)) < 300
