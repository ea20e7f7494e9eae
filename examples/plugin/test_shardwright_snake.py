"""The rules for every strategy, as a test; run it with pytest."""

from shardwright_snake import Snake

from shardwright.testing import check_strategy


def test_the_strategy_keeps_every_rule():
    check_strategy(Snake())
