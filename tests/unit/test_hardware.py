from __future__ import annotations

import platform

from shardwright.hardware import (
    _left_in_cgroups,
    _of_levels,
    available_memory,
    cache_bytes,
    cpu_model,
    differences,
    fingerprint,
)


def test_the_fingerprint_is_text_and_stable() -> None:
    first = fingerprint("cpu", "fbgemm")
    assert first == fingerprint("cpu", "fbgemm")
    assert all(isinstance(value, str) and value for value in first.values())
    assert first["python"] == platform.python_version()
    assert first["processor"] == cpu_model()


def test_other_hardware_and_libraries_are_distinguished_but_not_other_pythons() -> None:
    mine = fingerprint("cpu", "fbgemm")
    assert differences(mine, {**mine, "python": "2.7"}) == []
    other = {**mine, "processor": "abacus", "torch": "0.1"}
    assert differences(mine, other) == [f"processor: {mine['processor']} / abacus", f"torch: {mine['torch']} / 0.1"]
    assert differences(mine, {}) != []


def test_available_memory_is_plausible() -> None:
    assert 2**20 < available_memory() < 2**60


def test_memory_is_limited_by_the_cgroup_of_the_process_and_those_above_it(tmp_path) -> None:
    own, job = tmp_path / "cgroup", tmp_path / "root" / "slurm" / "job"
    job.mkdir(parents=True)
    for group, most, used, cached in (
        (job, "1000", "900", 50),
        (job.parent, "max", "5000", 0),
        (tmp_path / "root", "9000", "5000", 0),
    ):
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon 7\ninactive_file {cached}\n")
    own.write_text("1:name=systemd:/elsewhere\n0::/slurm/job\n")
    assert list(_left_in_cgroups(tmp_path / "root", own)) == [150, 4000]
    own.write_text("0::/../..\n")
    assert list(_left_in_cgroups(tmp_path / "root", own)) == [4000]
    assert list(_left_in_cgroups(tmp_path / "root", tmp_path / "none")) == []


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
