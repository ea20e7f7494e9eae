from __future__ import annotations

import pytest

from shardwright.measure.controls import Controls, control_works
from shardwright.measure.measuring import _SLACK_BYTES


def test_controls_are_the_same_each_time_and_small() -> None:
    assert control_works("cpu", "sgd") == control_works("cpu", "sgd")
    assert control_works("cuda", "sgd")[0].works[0].samples == 16_384
    assert max(work.table_bytes for work in control_works("cpu", "adam")) < _SLACK_BYTES


def test_the_state_of_the_machine_is_the_mean_ratio_to_then() -> None:
    controls = Controls((2.0, 8.0))
    assert controls.slower_than({"controls": Controls((1.0, 4.0)).text()}) == pytest.approx(2.0)
    assert controls.slower_than({"controls": "4,4"}) == pytest.approx(1.0)


@pytest.mark.parametrize("known", [{}, {"controls": ""}, {"controls": "1"}, {"controls": "x,y"}, {"controls": "0,1"}])
def test_without_figures_of_then_nothing_is_said(known: dict[str, str]) -> None:
    assert Controls((2.0, 8.0)).slower_than(known) is None
    assert Controls().slower_than(known) is None
