"""The network says the same step by step and in one pass, and attends to the units."""

import pytest

torch = pytest.importorskip("torch", reason="the network needs torch")
from shardwright.search.rnn.network import SequenceToSequence  # noqa: E402

UNITS, BLOCKS, DEVICES = 5, 7, 3


@pytest.fixture
def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield SequenceToSequence(features=4, units=UNITS, devices=DEVICES, hidden=8)


@pytest.fixture
def features():
    return torch.randn(BLOCKS, 4, generator=torch.Generator().manual_seed(1))


UNIT_B = torch.tensor([0, 0, 1, 2, 3, 4, 4])


def test_step_by_step_as_in_one_pass(network, features):
    encoded = network.encode(features, UNIT_B)
    before = torch.tensor([[DEVICES, 0, 1, 2, 0], [DEVICES, 2, 2, 1, 1]])
    at_once, _ = network.decode(encoded, 0, before)
    state, steps = None, []
    for turn in range(UNITS):
        logits, state = network.decode(encoded, turn, before[:, turn : turn + 1], state)
        steps.append(logits)
    assert at_once.shape == (2, UNITS, DEVICES)
    torch.testing.assert_close(torch.cat(steps, dim=1), at_once)


def test_episodes_do_not_touch_each_other(network, features):
    encoded = network.encode(features, UNIT_B)
    one, other = torch.tensor([[DEVICES, 0, 1, 2, 0]]), torch.tensor([[DEVICES, 2, 2, 1, 1]])
    both, _ = network.decode(encoded, 0, torch.cat([one, other]))
    torch.testing.assert_close(both[1:], network.decode(encoded, 0, other)[0])
    assert not torch.allclose(both[0, 1:], both[1, 1:])  # what was chosen before matters


def test_a_unit_is_the_sum_of_its_blocks_in_any_order(network, features):
    swapped = features.clone()
    swapped[[0, 1]] = features[[1, 0]]
    torch.testing.assert_close(network.encode(swapped, UNIT_B), network.encode(features, UNIT_B))


def test_first_unit_is_placed_with_the_last_in_view(network, features):
    changed = features.clone()
    changed[-1] += 1.0
    start = torch.tensor([[DEVICES]])
    first = [network.decode(network.encode(given, UNIT_B), 0, start)[0] for given in (features, changed)]
    assert not torch.allclose(*first)


def test_every_weight_learns(network, features):
    before = torch.tensor([[DEVICES, 0, 1, 2, 0]])
    logits, _ = network.decode(network.encode(features, UNIT_B), 0, before)
    logits.square().sum().backward()
    assert [name for name, weight in network.named_parameters() if not weight.grad.abs().sum() > 0] == []
