import pytest
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
