from dataclasses import fields, replace

import pytest

import shardwright as sw
from shardwright.cli.same_task import check_same_task, differences
from shardwright.errors import InvalidInput
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

TASK = task_of(4, 2)
ONE, OTHER = TASK.tables[:2]


def test_a_task_is_the_same_as_itself_after_a_file(tmp_path):
    TASK.save(tmp_path / "task.yaml")
    assert list(differences(TASK, sw.Task.load(tmp_path / "task.yaml"))) == []


def changed(**fields):
    return replace(TASK, **fields)


def first_changed(**fields):
    return changed(tables=[replace(ONE, **fields), *TASK.tables[1:]])


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (changed(batch_size=512), ["batch_size is 256 in the plan, 512 in the task"]),
        (changed(optimizer="adam"), ["optimizer is rowwise_adagrad in the plan, adam in the task"]),
        (
            changed(topology=replace(TASK.topology, hosts=2, devices_per_host=1)),
            ["topology: hosts differs", "topology: devices_per_host differs"],
        ),
        (changed(tables=TASK.tables[1:]), ["the task has no table 'table_0'"]),
        (changed(tables=[*TASK.tables, replace(ONE, name="new")]), ["the plan has no table 'new'"]),
        (first_changed(dim=ONE.dim * 2), [f"table 'table_0': dim is {ONE.dim}, not {ONE.dim * 2}"]),
        (first_changed(access=sw.AccessProfile.zipf(ONE.rows, 2.0)), ["table 'table_0': access differs"]),
        (changed(constraints=sw.Constraints(apart=(("table_0", "table_1"),))), ["constraints differ"]),
        (
            changed(exchange=sw.task.Exchange("host", "touched")),
            [
                "exchange is Exchange(deduplicate='none', replica_gradients='whole') in the plan, "
                "Exchange(deduplicate='host', replica_gradients='touched') in the task"
            ],
        ),
        (changed(tables=[OTHER, ONE, *TASK.tables[2:]]), []),
    ],
)
def test_every_difference_is_named(task, says):
    assert list(differences(TASK, task)) == says


@pytest.mark.parametrize("field", [one.name for one in fields(sw.Task)])
def test_no_field_of_a_task_is_forgotten(field):
    """Whatever a field holds, another value is a difference; that of a later release, too."""
    other = changed()
    value = {"tables": TASK.tables[1:], "topology": sw.Topology(), "constraints": None}.get(field, "another")
    object.__setattr__(other, field, value)
    assert list(differences(TASK, other))


def test_the_message_names_the_files_and_few_of_many_differences():
    plan = sw.plan(TASK, cost_model=SimpleCostModel())
    check_same_task(plan, "plan.json", TASK, "task.yaml")
    other = sw.Task([replace(table, name=f"new_{table.name}") for table in TASK.tables], TASK.topology, TASK.batch_size)
    with pytest.raises(
        InvalidInput, match=r"plan\.json: a plan for another task than task\.yaml .*'table_0'.*and 3 more\); plan this"
    ):
        check_same_task(plan, "plan.json", other, "task.yaml")
