"""Tests find the same tomorrow: what Hypothesis draws hangs on the test alone."""

import importlib
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[tuple[int, str]]:
    found = []

    @settings(max_examples=300, derandomize=True, database=None)
    @given(st.integers(), st.text())
    def collect(number, text):
        found.append((number, text))

    collect()
    return found


def test_examples_are_the_same_whatever_is_loaded(tmp_path, monkeypatch):
    """Without `tests/conftest.py`, the module's numbers and texts would be among the examples."""
    before = drawn()
    names = [f"loaded_later_{number}" for number in range(3)]
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"VALUES = {[7**n + 12_345 for n in range(20)]}, {name!r}, 'odd'\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in names:
        importlib.import_module(name)
    assert drawn() == before


def test_the_profile_repeats_itself_and_keeps_no_examples():
    profile = settings.get_profile("shardwright")
    assert profile.derandomize
    assert profile.database is None
    assert not settings.get_profile("explore").derandomize


@pytest.mark.parametrize("run", range(2))
def test_generators_without_a_seed_begin_anew_in_each_test(run):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    assert random.random() == random.Random(0).random()
    assert np.random.random() == np.random.RandomState(0).random()
