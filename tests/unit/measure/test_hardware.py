from __future__ import annotations

import platform

from shardwright.measure.hardware import available_memory, cpu_model, differences, fingerprint


def test_the_fingerprint_is_text_and_stable() -> None:
    first = fingerprint("cpu", "fbgemm")
    assert first == fingerprint("cpu", "fbgemm")
    assert all(isinstance(value, str) and value for value in first.values())
    assert first["python"] == platform.python_version()
    assert first["processor"] == cpu_model()


def test_other_hardware_and_libraries_are_told_apart_but_not_other_pythons() -> None:
    mine = fingerprint("cpu", "fbgemm")
    assert differences(mine, {**mine, "python": "2.7"}) == []
    other = {**mine, "processor": "abacus", "torch": "0.1"}
    assert differences(mine, other) == [f"processor: {mine['processor']} / abacus", f"torch: {mine['torch']} / 0.1"]
    assert differences(mine, {}) != []


def test_available_memory_is_plausible() -> None:
    assert 2**20 < available_memory() < 2**60
