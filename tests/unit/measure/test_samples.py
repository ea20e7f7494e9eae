"""Measured sets as a table, of stores and of Parquet files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardwright.errors import InvalidInput
from shardwright.measure.samples import columns, export_parquet, fingerprints, main, read_samples
from shardwright.measure.sampling import Breadth, SampleSpace
from shardwright.measure.store import SampleStore
from shardwright.modelling.dataset import samples_of
from shardwright.workload.generators import table_pool
from tests.unit.measure.rows import HERE, THERE, job, visit


def fill(folder: Path, numbers: range, hardware: dict[str, str] = HERE, optimizer: str = "sgd") -> Path:
    with SampleStore(folder, hardware) as store:
        for number in numbers:
            store.add(job(number, f"a:{number}", optimizer=optimizer), visit(1.0 + number))
    return folder


def test_visits_are_merged_into_one_time(tmp_path: Path) -> None:
    with SampleStore(tmp_path, HERE) as store:
        for measured in (visit(5.0, sentinel=2.0), visit(1.0), visit(3.0), visit(2.0)):
            store.add(job(1, kind="task"), measured)
        store.add(job(2, kind="task"), visit(4.0, sentinel=3.0))
        store.add(job(2, kind="task"), visit(6.0, sentinel=2.0))
    table = read_samples(tmp_path)
    assert table.schema.equals(columns())
    assert table["forward_ms"].to_pylist() == [2.0, 6.0]  # the median of the quiet ones, or the quietest
    assert table["visits"].to_pylist() == [4, 2]


def test_a_random_set_that_was_visited_again_has_a_second_row(tmp_path: Path) -> None:
    with SampleStore(tmp_path, HERE) as store:
        for kind in ("random", "control"):
            for measured in (visit(9.0, sentinel=2.0), visit(1.0), visit(1.1)):
                store.add(job(1, kind=kind), measured)
    samples = samples_of(read_samples(tmp_path))
    assert samples.repeat.tolist() == [0, 1]
    first, second = samples.repeat_pairs()
    assert (first[0, 0], second[0, 0]) == (1.0, 1.1)


def test_controls_are_no_samples(tmp_path: Path) -> None:
    with SampleStore(tmp_path, HERE) as store:
        store.add(job(1, kind="control"), visit())
        with pytest.raises(InvalidInput, match="holds no readable samples"):
            read_samples(tmp_path)
        store.add(job(2, "x", "pair"), visit())
    assert read_samples(tmp_path)["kind"].to_pylist() == ["pair"]


def test_several_kinds_of_hardware_are_distinguished(tmp_path: Path) -> None:
    fill(fill(tmp_path, range(3)), range(2, 4), THERE)
    with pytest.raises(InvalidInput, match="several kinds.*processor abacus.*processor slide rule.*--hardware"):
        read_samples(tmp_path)
    assert read_samples(tmp_path, hardware="Slide")["label"].to_pylist() == ["a:2", "a:3"]
    assert read_samples(tmp_path, hardware=HERE).num_rows == 3
    assert read_samples(tmp_path, allow_other_hardware=True).num_rows == 5
    with pytest.raises(InvalidInput, match="holds only measurements of other hardware or software"):
        read_samples(tmp_path, hardware=HERE | {"torch": "3"})
    assert [fingerprint["processor"] for fingerprint in fingerprints(tmp_path)] == ["abacus", "slide rule"]


def test_a_file_holds_what_models_are_trained_on(tmp_path: Path) -> None:
    space = SampleSpace(tuple(table_pool("dlrm-2021")), breadth=Breadth(sequence_share=0.3))
    with SampleStore(tmp_path, HERE) as store:
        for number in range(60):
            store.add(space.draw(number), visit(1.0 + number / 7))
    file = tmp_path / "samples.parquet"
    assert export_parquet([tmp_path], file) == 60
    assert file.stat().st_size < 60 * 600 + 20_000
    stored, kept = read_samples(tmp_path), read_samples(file)
    assert kept.schema.equals(stored.schema)
    for name in set(stored.schema.names) - {"shards", "forward_ms", "backward_ms", "sentinel"}:
        assert kept[name].equals(stored[name]), name
    assert fingerprints(file) == [HERE]
    exact, rounded = samples_of(stored), samples_of(kept)
    np.testing.assert_allclose(rounded.times, exact.times, rtol=5e-4)
    for name, values in vars(exact.works).items():
        np.testing.assert_allclose(getattr(rounded.works, name), values, rtol=1e-3, atol=1e-6, err_msg=name)


def test_files_of_the_format_before_are_read() -> None:
    """It had no numbers of features."""
    table = read_samples(Path(__file__).parents[3] / "data/costs/h100/plans.parquet")
    assert table.schema.equals(columns())
    assert (samples_of(table).works.features == 1).all()


def test_stores_and_files_make_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = fill(tmp_path / "one", range(3)), fill(tmp_path / "two", range(2, 6))
    fill(two, range(9, 11), optimizer="adagrad")
    file, all_ = tmp_path / "one.parquet", tmp_path / "all.parquet"
    assert export_parquet([one], file) == 3
    assert main([str(file), str(two), "-o", str(all_), "--optimizer", "sgd"]) == 0
    assert "6 measurements (6 random)" in capsys.readouterr().out
    assert read_samples(all_)["label"].to_pylist() == [f"a:{number}" for number in range(6)]
    fill(tmp_path / "three", range(1), THERE)
    assert main([str(one), str(tmp_path / "three"), "-o", str(all_)]) == 2
    assert "of other hardware or software" in capsys.readouterr().err
    assert read_samples(all_).num_rows == 6


def read_or_refused(path: Path) -> int:
    """Number of rows read; 0 if the file is refused, with a message that names it."""
    try:
        return read_samples(path).num_rows
    except InvalidInput as error:
        return 0 if str(path) in str(error) else 10**9


def test_of_a_damaged_file_no_more_is_read_than_was_there(tmp_path: Path) -> None:
    file = tmp_path / "samples.parquet"
    export_parquet([fill(tmp_path, range(20))], file)
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(4, len(whole), 80).tolist():
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert read_or_refused(file) <= 20
