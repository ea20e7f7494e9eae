import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.task import Task
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


def test_a_log_without_header_leads_to_a_command_that_reads_it_again(cli, tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("0\t5\t68fd1e64\n1\t\t05db9164\n" * 100)
    outcome = cli("profile", path, "--columns", "label,I1..I1,C1", "--exclude", "I*")
    assert outcome.out.splitlines()[-1].endswith(
        "--columns label,I1..I1,C1 -o tables.yaml --task task.yaml --exclude label"
    )
    assert "--no-header" in cli("profile", path, "--no-header").out.splitlines()[-1]


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """Two days with a time, keys of sessions and a label, and the folder they lie in."""
    monkeypatch.chdir(tmp_path)
    Path("my logs").mkdir()
    for day in range(2):
        lines = [
            f"{1_700_000_000 + 86_400 * day + 50 * line},s{day}-{line},{line % 7},{line % 2}" for line in range(1500)
        ]
        Path(f"my logs/day{day}.csv").write_text("\n".join(["time,the session,user,clicked", *lines]))
    return sorted(Path("my logs").glob("*.csv"))


def pasted(command, folder):
    """The arguments that a shell passes for a printed command."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "COLUMNS": "140"}
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_doubtful_features_are_listed_with_their_cost(cli, logs):
    outcome = cli("profile", *logs, "--dim", 16, "--rank-maps", "ranks.safetensors")
    assert outcome.code == 0
    time, session, label = outcome.err.splitlines()
    assert "warning: 'time' looks like a time: its ids are from 1,700,000,000 to 1,700,161,350" in time
    assert "takes 108.8 GB (1,700,161,351 rows x dim 16 x 4 bytes); leave it out with --exclude time unless" in time
    assert "leave it out with --exclude 'the session' unless" in session
    assert "'clicked' looks like a label" in label
    document = cli("profile", *logs, "--json").document
    assert [one["column"] for one in document["doubts"]] == ["time", "the session", "clicked"]
    assert document["doubts"][0]["bytes"] == 3000 * 64 * 4
    assert cli("profile", *logs, "--column", "user").err == ""


@pytest.mark.slow
def test_the_next_commands_lead_to_a_plan(cli, logs, tmp_path):
    following = cli("profile", *logs, "--json", "--dim", 8).document["next"]
    assert following == (
        "shardwright profile 'my logs'/*.csv --dim 8 -o tables.yaml --task task.yaml "
        "--exclude time --exclude 'the session' --exclude clicked"
    )
    done = pasted(following, tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "next: shardwright plan task.yaml -o plan.json"
    task = Task.load("task.yaml")
    assert [table.name for table in task.tables] == ["user"]
    assert (task.topology.devices, task.batch_size) == (8, 8192)
    pasted("shardwright plan task.yaml -o plan.json --strategy greedy", tmp_path)
    assert Path("plan.json").exists()


def test_a_task_skeleton_is_printed_without_an_output_file(cli, logs, tmp_path):
    Path("out put").mkdir()
    options = ("--column", "user", "-o", "out put/tables.yaml", "--rank-maps", "ranks.safetensors", "--topology", "cpu")
    following = cli("profile", *logs, *options).out.split("next:\n")[1]
    *_, last = following.splitlines()
    assert last == "shardwright plan 'out put/task.yaml' --rank-maps ranks.safetensors -o plan.json"
    pasted(f"{following.rstrip()} --strategy greedy", tmp_path)
    assert Task.load("out put/task.yaml").topology.device == "cpu"
    again = cli("profile", *logs, *options).out
    assert "cat > 'out put/tables-task.yaml'" in again  # the first one may have been edited


def test_a_task_has_hosts_for_its_tables_and_is_never_written_over(cli, logs):
    options = ("--column", "time", "--column", "user", "-o", "tables.yaml", "--dim", 64)
    large = cli("profile", *logs, *options, "--rank-maps", "r", "--column", "clicked", "--json", "--task", "task.json")
    assert large.code == 0
    assert Task.load("task.json").topology.hosts == 1  # doubted columns do not count
    assert " --rank-maps r --task task.json --exclude time --exclude clicked" in large.document["next"]
    numbers = ("profile", *logs, "--column", "time", "-o", "t.yaml", "--rows", "max_id", "--task", "sub.yaml")
    assert cli(*numbers).out.splitlines()[-1] == "next: shardwright plan sub.yaml -o plan.json"
    task = Task.load("sub.yaml")
    assert task.topology.hosts == 2  # 442 GB, and half of the memory is to stay free
    Path("sub.yaml").write_text("mine")
    assert "sub.yaml exists already, and stays as it is" in cli(*numbers).out
    assert Path("sub.yaml").read_text() == "mine"


def test_options_are_given_again_but_for_doubted_columns(cli, logs):
    Path("lists.csv").write_text("ids,x\n" + "".join(f"{line} {line + 5000},a\n" for line in range(2000)))
    given = ("lists.csv", "--pooled", "ids", "--list-separator", "|", "-o", "tables.yaml")
    following = cli("profile", *given, "--json").document["next"]
    assert shlex.split(following)[1:] == shlex.split(
        "profile lists.csv -o tables.yaml --list-separator '|' --exclude ids"
    )
    assert cli(*shlex.split(following)[1:]).code == 0
