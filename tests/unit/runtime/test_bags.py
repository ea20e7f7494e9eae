"""Sums of bags in pieces, in the order of ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright.runtime.bags import HeldBags, in_bags, weighted_sums


@given(st.data())
def test_answers_of_a_bag_are_added_in_the_order_of_members(data):
    count, members = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    pairs = data.draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, members - 1)), unique=True))
    answers = torch.from_numpy(np.random.default_rng(len(pairs)).standard_normal((len(pairs), 3)).astype(np.float32))
    pairs = sorted(pairs, key=lambda pair: pair[1])
    found = in_bags(answers, torch.tensor([bag for bag, _ in pairs], dtype=torch.int64), count, cut=True)
    wanted = torch.zeros(count, 3)
    for (bag, _), answer in zip(pairs, answers, strict=True):
        wanted[bag] += answer
    assert torch.equal(found, wanted)


@given(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4), max_size=6), st.booleans())
def test_gradients_of_a_row_are_added_in_the_order_of_its_lookups(bags, weighted):
    slots = torch.tensor([slot for bag in bags for slot in bag], dtype=torch.int64)
    first = torch.tensor([place == 0 for bag in bags for place in range(len(bag))], dtype=torch.int64)
    rng = np.random.default_rng(slots.numel())
    weights = torch.from_numpy(rng.random(slots.numel()).astype(np.float32)) if weighted else None
    gradient = torch.from_numpy(rng.standard_normal((len(bags), 2)).astype(np.float32))
    asked = (slots << 1) + first
    questions = asked if weights is None else torch.stack([asked, weights.view(torch.int32).long()], 1)
    _, held = HeldBags.of(0, [questions, questions], [len(bags)] * 2)
    distinct, sums = held.gradients(gradient)
    answers = torch.tensor([number for number, bag in enumerate(bags) for _ in bag], dtype=torch.int64)
    wanted = {slot: torch.zeros(2) for slot in sorted(set(slots.tolist()))}
    for place, slot in enumerate(slots.tolist()):
        wanted[slot] = wanted[slot] + gradient[answers[place]] * (1.0 if weights is None else weights[place])
    assert distinct.tolist() == list(wanted)
    assert all(torch.equal(one, other) for one, other in zip(sums, wanted.values(), strict=True))


def test_half_precision_rows_are_summed_in_single_precision():
    rows = torch.tensor([[2048.0], [1.0], [1.0]]).half()
    assert weighted_sums(rows, torch.tensor([0, 1, 2]), torch.tensor([0]), None).item() == 2050.0
