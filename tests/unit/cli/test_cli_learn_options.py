from dataclasses import dataclass

import pytest

from shardwright.cli.learn import options_from_texts
from shardwright.errors import InvalidInput


@dataclass(frozen=True)
class Options:
    iterations: int = 10
    learning_rate: float = 0.1
    objective: str = "step"
    seed: int = 0

    def __post_init__(self):
        if self.iterations < 1:
            raise InvalidInput(f"iterations is {self.iterations}, must be at least 1")


def test_values_have_the_types_of_the_defaults():
    found = options_from_texts(Options, {"seed": 3}, ["iterations=4", "learning_rate=1", "objective=5=x"])
    assert found == Options(4, 1.0, "5=x", 3)
    assert isinstance(found.learning_rate, float)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("iterations", "--option 'iterations' must be NAME=VALUE"),
        ("learning_rat=1", "did you mean 'learning_rate'? names are iterations, learning_rate, objective, seed"),
        ("iterations=1.5", "the value must be a whole number"),
        ("learning_rate=fast", "the value must be a number"),
        ("seed=1", "seed is already set"),
        ("iterations=0", "iterations is 0, must be at least 1"),
    ],
)
def test_bad_options(text, says):
    with pytest.raises(InvalidInput) as error:
        options_from_texts(Options, {"seed": 3}, [text])
    assert says in str(error.value)


def test_an_option_given_twice_is_refused():
    with pytest.raises(InvalidInput, match="iterations is already set"):
        options_from_texts(Options, {}, ["iterations=4", "iterations=5"])
