import pytest

from shardwright.task.files import load_tables


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,item,label\n1,1 2 3,0.5\n2,1 2,0.25\n7,1,0.5\n")
    return path


def test_a_log_becomes_tables(cli, log, tmp_path):
    target = tmp_path / "tables.yaml"
    outcome = cli("profile", log, "-o", target, "--dim", 8)
    assert outcome.code == 0
    user, item = load_tables(target)
    assert (user.name, user.rows, user.dim, user.pooling) == ("user", 3, 8, 1.0)
    assert (item.rows, item.pooling, item.pooled) == (3, 2.0, True)
    assert f"saved {target}" in outcome.out
    assert "'label' is left out" in outcome.out


def test_the_options_reach_the_profiler(cli, log):
    outcome = cli("profile", log, "--rows", "max_id", "--sequence", "item", "--exclude", "label", "--json")
    user, item = outcome.document["tables"]
    assert user["rows"] == 8
    assert item["pooled"] is False
    assert (outcome.document["lookups"], outcome.document["samples"]) == (9, 3)
    assert outcome.err == ""
    only = cli("profile", log, "--column", "user", "--json").document["tables"]
    assert [one["name"] for one in only] == ["user"]


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("", [], "Empty CSV file"),
        ("user,item\n", [], "empty"),
        ("user,item\n1,2\n", ["--column", "nobody"], "nobody"),
        ("user,item\n1,2\n", ["--sequence", "user"], "'user' is not a profiled column of lists"),
        ("user,item\n1,2\n", ["--rows", "most"], "Invalid value for '--rows'"),
        ("user,item\n-1,2\n", [], "negative"),
    ],
)
def test_bad_logs_and_options(cli, tmp_path, content, options, says):
    path = tmp_path / "log.csv"
    path.write_text(content)
    outcome = cli("profile", path, *options, "--json")
    assert outcome.code == 2
    assert says in outcome.document["error"]["message"]


def test_a_target_that_cannot_be_saved_is_noticed_before_the_logs_are_read(cli, tmp_path):
    outcome = cli("profile", "no-such-log.csv", "-o", tmp_path / "no" / "tables.yaml")
    assert outcome.code == 2
    assert "its folder does not exist" in outcome.err


@pytest.mark.parametrize(
    "targets", [["-o", "log.csv"], ["--rank-maps", "./log.csv"], ["-o", "x.yaml", "--rank-maps", "x.yaml"]]
)
def test_the_log_and_other_results_are_not_written_over(cli, log, tmp_path, monkeypatch, targets):
    monkeypatch.chdir(tmp_path)
    before = log.read_bytes()
    assert cli("profile", log, *targets).code == 2
    assert log.read_bytes() == before
    assert not (tmp_path / "x.yaml").exists()
