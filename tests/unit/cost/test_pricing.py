import numpy as np

from shardwright.cost.analytic import AnalyticModel
from shardwright.cost.pricing import Pricing
from shardwright.testing.model import SimpleCostModel


def test_the_simple_models_time_by_hand():
    forward, backward = SimpleCostModel().pricing.price(np.array([2.0, 3.0, 5.0]))
    assert forward == 0.01 + 2 + 0.3 * 5 + (3 - 1)
    assert backward == 0.02 + 1.5 * 2 + 3 + 2 * (3 - 1)


def test_without_hidden_units_the_time_is_linear():
    pricing = AnalyticModel("h200").pricing
    np.testing.assert_allclose(pricing.price(np.array([[1.0, 2.0], [3.0, 4.0]])), [[1.02, 2.02], [3.02, 4.02]])
    assert pricing.convex


def test_times_are_never_negative():
    pricing = Pricing(np.zeros((0, 1)), np.zeros(0), np.zeros((2, 0)), np.ones((2, 1)), np.zeros(2))
    assert (pricing.price(np.array([-5.0])) == 0).all()


def test_a_negative_mix_is_not_convex():
    pricing = Pricing(np.ones((1, 1)), np.zeros(1), np.array([[1.0], [-0.1]]), np.zeros((2, 1)), np.zeros(2))
    assert not pricing.convex
