import pytest
from experiments.entrants import Limits
from experiments.learned.tasks import NAMES, UPDATES, learned_entrant

from shardwright.learned.rnn import RnnOptions


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_goes_by_its_name(name):
    assert learned_entrant(name).name == name


def test_rnn_trains_as_long_as_asked():
    assert RnnOptions().updates == UPDATES
    assert learned_entrant("rnn").version == f"{UPDATES} updates"
    short = learned_entrant("rnn", rnn_updates=3)
    assert short.version == "3 updates"
    assert short.strategy.options.updates == 3


def test_limits_are_passed_on():
    assert learned_entrant("certified", Limits(seconds=2.0)).time_limit == 2.0
