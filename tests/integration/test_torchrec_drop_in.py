"""Situations of TorchRec's users: the results with its planner, and with ours in its place."""

import pytest

pytest.importorskip("torchrec")

from tests.drop_in.heard import HEARD
from tests.drop_in.refused import REFUSED
from tests.drop_in.situation import PLANNED, outcome, tables_by_name
from tests.drop_in.trained import TRAINED, differences

pytestmark = pytest.mark.torchrec

WARNED = {"bwd_compute_multiplier", "weighted_feature_bwd_compute_multiplier", "uneven_sharding_perf_multiplier"}


@pytest.mark.parametrize("whose", ["theirs", "ours"])
@pytest.mark.parametrize("situation", [*REFUSED, *HEARD], ids=lambda situation: situation.name)
def test_each_planner_plans_or_refuses_as_expected(situation, whose):
    result = outcome(situation, whose, **({"time_limit": 0.05} if whose == "ours" else {}))
    assert result.what == getattr(situation, whose), result.said
    assert result.plan is None or situation.holds is None or situation.holds(tables_by_name(result.plan))
    if whose == "ours":
        assert "\n" not in result.said
        assert all("\n" not in warning for warning in result.warned)
        assert situation.name not in WARNED or any(situation.name in warning for warning in result.warned)


def test_differences_have_a_reason():
    """Situations in which one planner plans and the other refuses."""
    for situation in (*REFUSED, *HEARD):
        assert bool(situation.why) == ((situation.ours == PLANNED) != (situation.theirs == PLANNED)), situation.name


def test_names_are_unique():
    names = [situation.name for situation in (*REFUSED, *HEARD)]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_models_train_as_on_one_process():
    trainings = differences(TRAINED)
    for row in TRAINED:
        theirs, ours = (trainings[row.name][whose]["difference"] for whose in ("theirs", "ours"))
        assert ours <= row.tolerance, row.name
        assert (theirs <= row.tolerance) == row.theirs, row.name
        hosts = trainings[row.name]["ours"]["hosts"]
        towers = [{tuple(hosts[name]) for name in hosts if name[0] == tower} for tower in {name[0] for name in hosts}]
        assert "tower" not in row.name or all(len(one) == 1 and len(next(iter(one))) == 1 for one in towers), row.name
