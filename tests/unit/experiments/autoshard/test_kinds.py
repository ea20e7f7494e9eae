import pytest
from experiments.autoshard.kinds import FULL, QUICK, Kind, Scale
from experiments.learned.tasks import Setting

SMALL = Scale(tables=(5, 7), devices=(2, 4), unseen=(0.0, 0.5, 1.0), base=Setting(5, 4), training_tasks=1, tasks=1)


@pytest.mark.parametrize("scale", [FULL, QUICK, SMALL])
def test_every_column_has_a_target_that_is_trained(scale):
    for part in scale.parts:
        assert len(part.targets) == len(part.tested)
        assert set(part.targets) | {kind for kind, _ in part.trained} <= set(scale.trained)
        assert {kind for kind, _ in part.tested} <= set(scale.tested)


def test_tasks_for_training_and_for_testing_are_different():
    kind = Kind(Setting(5, 2), 0.0)
    assert len(kind.tasks(3, seed=0)) == 3
    assert kind.tasks(1, seed=0) == kind.tasks(2, seed=0)[:1] != kind.tasks(1, seed=2022)
