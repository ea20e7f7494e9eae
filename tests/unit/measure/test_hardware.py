from __future__ import annotations

import platform

from shardwright.measure.hardware import _of_levels, available_memory, cache_bytes, cpu_model, differences, fingerprint


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


def write(folder, index, **files):
    cache = folder / f"index{index}"
    cache.mkdir(parents=True)
    for name, text in files.items():
        (cache / name).write_text(f"{text}\n")


def test_the_second_and_the_last_level_are_read(tmp_path):
    write(tmp_path, 0, type="Data", level=1, size="32K")
    write(tmp_path, 1, type="Instruction", level=1, size="64K")
    write(tmp_path, 2, type="Unified", level=2, size="2M")
    write(tmp_path, 3, type="Unified", level=3, size="30720K")
    assert _of_levels(tmp_path) == (2 << 20, 30 << 20)


def test_a_system_that_does_not_tell_gives_common_sizes(tmp_path):
    common = _of_levels(tmp_path / "absent")
    write(tmp_path, 0, type="Unified", level="two", size="2M")
    assert _of_levels(tmp_path) == common
    assert 0 < common[0] < common[1]


def test_without_a_third_level_the_last_is_the_second(tmp_path):
    write(tmp_path, 0, type="Unified", level=2, size="512K")
    assert _of_levels(tmp_path) == (512 << 10, 512 << 10)


def test_this_machine_has_caches():
    assert min(cache_bytes()) > 0
