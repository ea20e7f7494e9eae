"""Compiled functions, and those that only they call."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numba import njit

from shardwright.jit import compilation_told, compiled, inner, inner_with


@inner
def _scaled(values: np.ndarray[Any, np.dtype[np.float64]], scale: int) -> float:
    total = 0.0
    for value in values:
        total += scale * value
    return total


@inner_with(fastmath={"reassoc"})
def _summed(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    return _scaled(values, 1)


@compiled
def _combined(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    return _scaled(values, 2) + _scaled(values, -1) + _summed(values)


def test_inner_functions_run_from_python_and_from_compiled_code() -> None:
    values = np.arange(5.0)
    assert (_scaled(values, 2), _summed(values), _combined(values)) == (20.0, 10.0, 20.0)


def test_one_kind_of_arguments_is_compiled_once() -> None:
    for length in range(3):
        _combined(np.arange(float(length)))
    assert len(cast("Any", _combined).signatures) == 1


def test_compiling_is_told_once_with_all_that_a_function_needs() -> None:
    told: list[bool] = []
    halved = njit(lambda value: value / 2)
    fresh = njit(lambda value: halved(value) + 1)
    with compilation_told(told.append):
        assert fresh(3.0) == fresh(3.0) == 2.5
        assert told == [True, False]
        fresh(3)
        assert told == [True, False] * 2
    fresh(True)
    assert len(told) == 4
