import numpy as np
import pytest
import torch

from shardwright.errors import InfeasibleTask
from shardwright.learned.priced.placing import copies_for, placements
from shardwright.learned.priced.policy import FEATURES, PricedPolicy, longest_first, place
from shardwright.learned.priced.task import PHASES, PricedTask
from shardwright.task import TableConstraint
from shardwright.testing.tasks import impossible_task
from tests.unit.learned.priced.made import mixed_task, models, policy_of, priced, random_network


@pytest.mark.parametrize("name", ["h200", "cpu", "h100"])
def test_engine_and_torch_agree(name):
    network, task = random_network(), priced(mixed_task(), models()[name])
    placed = place(PricedPolicy(policy_of(network)), task, np.random.default_rng(0), 3, record=True)
    assert np.isfinite(placed.seen).all()
    assert np.isfinite(placed.facts).all()
    with torch.no_grad():
        theirs = network.logits(torch.tensor(placed.seen), torch.tensor(placed.facts)).numpy()
    ours = placed.logits
    np.testing.assert_allclose(ours - ours[..., :1], theirs - theirs[..., :1], rtol=1e-3, atol=1e-3)


def test_inputs_are_what_they_are_called():
    """The inputs are computed anew from the placement, at the task's own prices."""
    task = priced(mixed_task(colocate=(("t0", "t1", "t2"),)), models()["h100"])
    placed = place(PricedPolicy(policy_of(random_network())), task, np.random.default_rng(0), 2, record=True)
    order, devices, over, parts = longest_first(task), task.arrays.devices, 1 / task.references(), placed.parts
    sums, held = np.zeros((devices, *task.vectors.shape[1:])), np.zeros((devices, task.calls.shape[1]), dtype=bool)
    links, slowest = np.zeros((devices, 3)), np.zeros(4)
    for step, unit in enumerate(order):
        before = np.hstack([task.kernels(sums, held), task.on_links(links)]) * over
        slowest = np.maximum(slowest, before.max(axis=0))
        with_unit = [
            task.kernels(sums + task.vectors[unit], held | task.calls[unit]),
            task.on_links(links + task.links[unit]),
        ]
        after = np.hstack(with_unit) * over
        seen = dict(zip(FEATURES, placed.seen[step, 1].T, strict=True))
        for number, phase in enumerate(PHASES):
            np.testing.assert_allclose(seen[f"{phase} with the unit"], np.minimum(after[:, number], 4), rtol=1e-5)
            np.testing.assert_allclose(seen[f"{phase} before"], np.minimum(before[:, number], 4), rtol=1e-5, atol=1e-9)
        rise = ((after**8 - before**8) @ parts).clip(1e-9)
        np.testing.assert_allclose(seen["rise of the 8th powers"], np.log(rise) / 8, rtol=1e-3, atol=1e-3)
        over_mean = after @ parts - (before @ parts).mean()
        np.testing.assert_allclose(seen["time over the mean device"], over_mean, rtol=1e-4, atol=1e-5)
        step_after = np.maximum(after, slowest) @ parts
        np.testing.assert_allclose(seen["rise of the step"], step_after - step_after.min(), rtol=1e-4, atol=1e-5)
        device = placed.assignment[1, unit]
        sums[device] += task.vectors[unit]
        held[device] |= task.calls[unit]
        links[device] += task.links[unit]
    np.testing.assert_allclose(placed.step[1], placed.slowest[-1, 1] @ parts)


def test_features_do_not_depend_on_a_devices_own_scale():
    """A device that is a thousand times slower, links included, gets the same placement."""
    task, policy = priced(mixed_task(), models()["h200"]), PricedPolicy(policy_of(random_network()))
    slower = PricedTask(
        task.arrays,
        type(task.pricing)(task.pricing.hidden, task.pricing.hidden_bias, task.pricing.mix, task.pricing.linear, 1e3 * task.pricing.bias),
        1e3 * task.vectors, task.calls, 1e3 * task.links, 1e3 * task.fixed_vectors, task.fixed_calls, 1e3 * task.fixed_links, task.works,
    )  # fmt: skip
    np.testing.assert_array_equal(place(policy, task, None, 1).assignment, place(policy, slower, None, 1).assignment)


def test_one_copy_is_the_likeliest_and_seeds_decide_the_others():
    task, policy = priced(mixed_task(), models()["cpu"]), PricedPolicy(policy_of(random_network()))
    one = place(policy, task, None, 1).assignment[0]
    several = place(policy, task, np.random.default_rng(1), 4).assignment
    np.testing.assert_array_equal(several[0], one)
    np.testing.assert_array_equal(several, place(policy, task, np.random.default_rng(1), 4).assignment)
    assert len({row.tobytes() for row in several}) > 1


def test_rules_are_kept():
    task = mixed_task(
        apart=(("t0", "t1", "t2"),), colocate=(("t3", "t6"),), tables={"t4": TableConstraint(devices=(2,))}
    )
    priced_task = priced(task, models()["h200"])
    policy = PricedPolicy(policy_of(random_network()))
    for assignment in placements(policy, priced_task, 6, 0, None):
        priced_task.arrays.plan(assignment, "dreamshard", 0).check()


def test_tight_memory_is_met_by_other_orders_or_raises():
    from tests.unit.learned.dreamshard.test_strategy import packing_task

    tight, policy = priced(packing_task(1.05), models()["cpu"]), PricedPolicy(policy_of(random_network()))
    for assignment in placements(policy, tight, 1, 0, None):
        assert np.bincount(assignment, minlength=4).tolist() == [2, 2, 2, 2]
    with pytest.raises(InfeasibleTask, match=r"no device is left for table .*allow column_wise or row_wise"):
        placements(policy, priced(impossible_task(), models()["cpu"]), 2, 0, None)


def test_large_tasks_are_placed_once():
    arrays = priced(mixed_task(40), models()["cpu"]).arrays
    assert copies_for(arrays) == 32
    large = type("Large", (), {"devices": 128, "__len__": lambda self: 1000})()
    assert copies_for(large) == 1
