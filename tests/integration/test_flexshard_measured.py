"""The benchmark of tiered plans on a slow link: its batches and its model against plain ones, and a tiny run of all of it."""

import functools
import json
from collections import Counter

import numpy as np
import pytest
import torch


@pytest.fixture
def log(tmp_path):
    """Five users, the third with the longest history."""
    histories = [[3, 1], [4, 4, 2], [1, 2, 3, 4, 5, 6, 7], [6], [2, 9]]
    path = tmp_path / "events.txt"
    path.write_text("".join(f"{user + 10} {item}\n" for user, items in enumerate(histories) for item in items))
    return path


def test_batches_of_a_log_are_histories_cut_at_their_ends(program, log):
    case = program("flexshard_cases").Case("log", 4, 1, log=str(log), longest=3)
    data = case.data()
    back = {int(new): old for old, new in enumerate(data.permutation)}
    seen = []
    for step in range(2):
        for rank in range(2):
            ids, lengths = data.batch(step, rank, 2)["item"]
            assert lengths.tolist() == [ids.size]
            seen.append(tuple(back[int(id_)] for id_ in ids))
    assert len(set(seen)) == 4
    assert set(seen) <= {(3, 1), (4, 4, 2), (5, 6, 7), (6,), (2, 9)}
    (table,) = data.tables()
    assert (table.rows, table.pooling, table.pooled) == (10, 11 / 5, False)
    counts = Counter([3, 1, 4, 4, 2, 5, 6, 7, 6, 2, 9])
    hottest = [back[int(id_)] for id_ in data.rank_maps()["item"].hottest]
    assert sorted(counts.values(), reverse=True) == [counts[item] for item in hottest[: len(counts)]]


def test_synthetic_batches_follow_their_tables(program):
    cases = program("flexshard_cases")
    case = cases.Case("synthetic", 4, 200, tables=3, rows=60, zipf=1.2, length=20)
    data, again = case.data(), case.data()
    batch = data.batch(3, 1, 4)
    assert all(np.array_equal(batch[name][0], again.batch(3, 1, 4)[name][0]) for name in batch)
    assert not np.array_equal(batch["t000"][0], data.batch(3, 0, 4)["t000"][0])
    for table in data.tables():
        ids, lengths = batch[table.name]
        assert lengths.sum() == ids.size
        assert lengths.mean() == pytest.approx(table.pooling, rel=0.15)
        ranks = data.rank_maps()[table.name].ranks(ids)
        assert 0 <= ids.min() <= ids.max() < table.rows
        for hottest in (1, 5, 20):
            assert (ranks < hottest).mean() == pytest.approx(table.access.share_of(0, hottest), abs=0.05)


def test_each_batch_size_is_a_case_with_its_own_name(program):
    cases = list(program("flexshard_cases").cases(None, quick=False, production=False, batches=(32, 128)))
    assert [case.batch for case in cases] == [32] * 5 + [128] * 5
    assert len({case.name for case in cases}) == len(cases)
    assert cases[-1].name.endswith("Zipf 1.3, 128 samples a device")


def test_the_loss_equals_that_of_a_plain_loop(program):
    model = program("flexshard_model")
    values, lengths = torch.randn(7, 3, generator=torch.Generator().manual_seed(1)) * 0.1, torch.tensor([3, 0, 1, 3])
    expected = 0.0
    for start, stop in ((0, 3), (3, 4), (4, 7)):
        for here in range(start, stop - 1):
            state = values[start : here + 1].mean(0)
            right, wrong = (state @ values[index] * 100 for index in (here + 1, (here * 7919 + 1) % 7))
            expected += float(torch.log1p(torch.exp(-right)) + torch.log1p(torch.exp(wrong))) * 1e-3
    assert float(model.loss_of({"t": (values, lengths)})) == pytest.approx(expected, rel=1e-5)


def test_a_journal_survives_a_run_that_was_killed(program, tmp_path):
    journal = program("flexshard_measured").Journal
    path = tmp_path / "journal.jsonl"
    first = journal(path)
    first.add("a", value=1)
    first.add("a", value=2)
    path.write_text(path.read_text() + '{"key": "b", "val')
    again = journal(path)
    assert again.row("a") == {"key": "a", "value": 2}
    assert again.row("b") is None
    again.add("c", value=3)
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["a", "a", "c"]


@pytest.mark.slow
@pytest.mark.netns
def test_plans_are_measured_on_hosts_with_a_slow_link(program, tmp_path, monkeypatch, log):
    measured, cases, hosts = program("flexshard_measured"), program("flexshard_cases"), program("hosts")
    if reason := hosts.why_not():
        pytest.skip(reason)
    case = cases.Case("tiny", 8, 16, tables=2, rows=200, zipf=1.1, length=30)
    monkeypatch.setattr(measured, "cases", lambda *_, **__: iter([case]))
    monkeypatch.setattr(measured, "EXCHANGES", measured.EXCHANGES[2:])
    monkeypatch.setattr(measured, "calibrate", functools.partial(measured.calibrate, runs=2))
    arguments = [
        "--rounds", "1", "--steps", "1", "--memory", "1.5", "--rate", "1gbit", "--journal",
        str(tmp_path / "journal.jsonl"),
    ]  # fmt: skip
    measured.main(arguments)
    page = (tmp_path / "flexshard_measured.md").read_text()
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    visits = [row for row in rows if "forward_ms" in row]
    assert len(visits) == 3  # table_row_wise needs twice the memory on one of the hosts
    for visit in visits:
        assert min(visit["forward_ms"] + visit["backward_ms"] + visit["step_ms"]) > 0
        assert 0 < sum(visit["metered"][0]) / 4 < max(visit["counted"][0])
        assert visit["losses"] == pytest.approx(rows[1]["losses"], rel=1e-5)
        assert visit["losses"][-1] != visit["losses"][0]
    assert "| flexshard | host/cheaper | 1.5× |" in page
    measured.main(arguments)  # all of it is known
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == len(rows)
