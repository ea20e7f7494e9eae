from shardwright.task import Table, Task, Topology

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
