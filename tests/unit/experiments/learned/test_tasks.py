import pytest
from experiments.learned.tasks import VALIDATION_SEED, Setting, draw_task, draw_tasks, halves

SETTING = Setting(40, 4)


@pytest.mark.parametrize(("unseen", "share"), [(0.0, 0.0), (1.0, 1.0), (0.5, 0.5)])
def test_tables_are_of_both_halves_as_asked(unseen, share):
    train, test = ({table.name for table in half} for half in halves())
    drawn = [{table.name for table in task.tables} for task in draw_tasks(SETTING, 5, unseen=unseen)]
    assert all(len(names) == 40 and names <= train | test for names in drawn)
    assert sum(len(names & test) for names in drawn) / 200 == pytest.approx(share, abs=0.1 * (0 < share < 1))


def test_a_task_depends_on_its_setting_its_number_and_the_seed_alone():
    assert draw_task(SETTING, 3) == draw_task(SETTING, 3) != draw_task(SETTING, 4)
    assert draw_task(SETTING, 3) != draw_task(SETTING, 3, seed=VALIDATION_SEED)


def test_every_table_stays_whole():
    task = draw_task(Setting(10, 4), 0)
    assert all(task.constraints.of(table.name).sharding_types == ("table_wise",) for table in task.tables)
