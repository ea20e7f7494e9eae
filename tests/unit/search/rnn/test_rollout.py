"""Plans drawn keep the masks, and their probability is that of the choices made."""

import pytest

torch = pytest.importorskip("torch", reason="rollouts need torch")
from shardwright.search.learned.arrays import PlacementArrays  # noqa: E402
from shardwright.search.rnn.network import SequenceToSequence  # noqa: E402
from shardwright.search.rnn.rollout import Sequence, likelihood, masked, roll_out  # noqa: E402
from shardwright.testing import conformance_tasks  # noqa: E402
from shardwright.testing.tasks import impossible_task  # noqa: E402


def made(task, episodes=6):
    arrays = PlacementArrays.of(task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = SequenceToSequence(21, len(arrays), arrays.devices, 8)
    return network, Sequence.of(arrays, episodes), torch.Generator().manual_seed(0)


def test_largest_units_first():
    _, sequence, _ = made(conformance_tasks()["devices of unequal memory"])
    sizes = sequence.batch.bytes_eu[0][sequence.order_u]
    assert (sizes[:-1] >= sizes[1:]).all()
    assert len(sizes.unique()) > 1


@pytest.mark.parametrize("what", ["constraints of every kind", "memory that fits to the byte", "two hosts"])
def test_choices_keep_the_masks(what):
    network, sequence, generator = made(conformance_tasks()[what])
    rollout = roll_out(network, sequence, generator)
    chosen = rollout.mask_eud.gather(2, rollout.device_eu[..., None])[..., 0]
    assert chosen.all()
    assert (rollout.excess_e == 0).all()
    by_turn = rollout.assignment_eu[:, sequence.order_u]
    assert (by_turn == rollout.device_eu).all()


def test_likelihood_is_that_of_the_choices():
    network, sequence, generator = made(conformance_tasks()["constraints of every kind"])
    rollout = roll_out(network, sequence, generator)
    log_e, entropy_e = likelihood(network, sequence, rollout)
    encoded, state = sequence.encode(network), None
    expected, entropy, device = torch.zeros(6), torch.zeros(6), torch.full((6, 1), network.start)
    for turn in range(len(sequence.order_u)):
        logits, state = network.decode(encoded, turn, device, state)
        for episode in range(6):
            allowed = torch.flatten(rollout.mask_eud[episode, turn].nonzero())
            chances = torch.softmax(logits[episode, 0, allowed], dim=0)
            place = (allowed == rollout.device_eu[episode, turn]).nonzero()[0, 0]
            expected[episode] += chances[place].log()
            entropy[episode] -= (chances * chances.log()).sum()
        device = rollout.device_eu[:, turn : turn + 1]
    torch.testing.assert_close(log_e, expected / len(sequence.order_u))
    torch.testing.assert_close(entropy_e, entropy / len(sequence.order_u))


def test_a_unit_without_a_device_fails_the_episode_and_counts_for_nothing():
    network, sequence, generator = made(impossible_task())
    rollout = roll_out(network, sequence, generator)
    assert (rollout.excess_e > 0).all()
    log_e, entropy_e = likelihood(network, sequence, rollout)
    (log_e.sum() + entropy_e.sum()).backward()
    assert torch.isfinite(log_e).all()
    assert all(torch.isfinite(weight.grad).all() for weight in network.parameters())


def test_without_a_generator_the_likeliest_device():
    network, sequence, _ = made(conformance_tasks()["several tables on four devices"])
    rollout = roll_out(network, sequence, None)
    assert (rollout.device_eu == rollout.device_eu[:1]).all()
    before = torch.cat([torch.full((6, 1), network.start), rollout.device_eu[:, :-1]], dim=1)
    logits, _ = network.decode(sequence.encode(network), 0, before)
    assert (masked(logits, rollout.mask_eud).argmax(dim=2) == rollout.device_eu).all()


def test_masked_keeps_rows_that_nothing_can_take():
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = masked(logits, torch.tensor([[True, False], [False, False]]))
    assert found.tolist() == [[1.0, -float("inf")], [3.0, 4.0]]
