import pytest
from experiments.learned.tasks import NAMES, learned_entrant


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_goes_by_its_name(name):
    assert learned_entrant(name).name == name
