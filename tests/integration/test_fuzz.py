"""A small part of the fuzz: it finds no fault, and finds faults that are planted."""

import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fuzz.cases import Case, Input
from tests.fuzz.legal import broken_rules
from tests.fuzz.process import Limits, run
from tests.fuzz.verdict import findings, snapshot

import shardwright as sw
from shardwright.sharding.files import plan_to_dict
from shardwright.task.files import task_to_dict
from shardwright.testing.tasks import constrained_task

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_small_part_of_the_fuzz_finds_nothing():
    pytest.importorskip("fbgemm_gpu", reason="the fuzz measures kernels too")
    fuzz = [sys.executable, "-m", "tests.fuzz", "--cases", "100", "--json"]
    done = subprocess.run(fuzz, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    *commands, together = json.loads(done.stdout)["rows"]
    assert together["cases"] == 100
    assert {"plan", "profile", "show", "report", "compare", "train", "learn", "review", "scale", "drift"} <= {
        row["command"] for row in commands
    }


def says(text, code=0):
    def deed():
        print(text)
        return code

    return deed


def fails(text, code=2):
    def deed():
        print(text, file=sys.stderr)
        return code

    return deed


def writes(name, text, code=0):
    def deed():
        Path(name).write_text(text)
        return code

    return deed


def leaves_a_process():
    if not os.fork():
        time.sleep(60)
        os._exit(0)
    return 1


@pytest.mark.parametrize(
    ("deed", "fault"),
    [
        (lambda: 1 / 0, "traceback at ?:?: ZeroDivisionError"),
        (lambda: time.sleep(60), "hangs: killed after 1 s"),
        (lambda: len(b"x" * (400 << 20)), "takes "),
        (lambda: 7, "exit code 7"),
        (lambda: os.kill(os.getpid(), 15), "exit code -15"),
        (leaves_a_process, "leaves a process behind"),
        (lambda: 0, "exits with 0 without writing 'out0.json'"),
        (lambda: 1, "0 error lines"),
        (fails("error: in0\nerror: in0"), "2 error lines"),
        (fails(f"error: in0: {'x' * 3000}"), "an error of 3012 characters"),
        (fails("error: that does not do"), "names no file or option at fault: error: that does not do"),
        (fails("error: in0 \x1b[31m is red"), "control character '\\x1b' on stderr"),
        (fails("note: so it is\n" * 5000), "prints 75001 characters on stderr"),
        (says("{}\n{}"), "--json prints something else than one JSON document"),
        (says('{"a": NaN}'), "--json prints something else than one JSON document"),
        (writes("in0.json", "changed"), "changes 'in0.json', which is not its to write"),
        (writes("other", ""), "makes 'other', which is not its to write"),
        (writes("out0.json", "{", code=2), "writes 'out0.json' and exits with 2"),
        (writes("out0.json", "{"), "writes 'out0.json', which is no whole plan: "),
        (writes(".shardwright-0.tmp", "{"), "leaves .shardwright-0.tmp behind"),
        (lambda: Path("in0.json").unlink(), "changes 'in0.json'"),
    ],
)
def test_faults_are_found(tmp_path, deed, fault):
    (tmp_path / "in0.json").write_text("{}")
    case = Case(
        0,
        tmp_path,
        argv=["plan", "in0.json", "-o", "out0.json", "--json"],
        inputs={"in0.json": Input("task", "document", "in0")},
        outputs={"out0.json": "plan"},
        limits=Limits(seconds=1.0, memory=200 << 20),
    )
    before = snapshot(tmp_path)
    ran = run(lambda: deed() or 0, tmp_path, case.limits)
    assert any(fault in text for text in findings(case, ran, before)), (findings(case, ran, before), ran)


def test_an_error_that_names_its_file_is_none(tmp_path):
    case = Case(0, tmp_path, argv=["plan", "in0.json"], inputs={"in0.json": Input("task", "missing", "in0")})
    assert findings(case, run(fails("error: in0.json: there is none"), tmp_path, case.limits), {}) == []


@pytest.fixture(scope="module")
def planned():
    task = constrained_task()
    plan = plan_to_dict(sw.plan(task, strategy="certified", time_limit=0.5))
    return task_to_dict(task), json.loads(json.dumps(plan))


def shard_of(plan, table):
    return next(shard for shard in plan["shards"] if shard["table"] == f"table_{table}")


SPOILERS = {
    "are not of tables": lambda task, plan: plan["shards"].append({**plan["shards"][0], "table": "no such"}),
    "lies outside": lambda task, plan: shard_of(plan, 3).update(rows=[0, 10**9]),
    "do not add up": lambda task, plan: plan["shards"].remove(shard_of(plan, 3)),
    "overlap": lambda task, plan: plan["shards"].extend([shard_of(plan, 3)] * 2),
    "ranks [9]": lambda task, plan: shard_of(plan, 3).update(devices=[9]),
    "and has 1000": lambda task, plan: task["topology"].update(memory=1000),
    "the plan says 0": lambda task, plan: [device.update(memory_bytes=0) for device in plan["devices"]],
    "'devices': [1, 2]} is broken": lambda task, plan: shard_of(plan, 0).update(devices=[0]),
    "'colocate': ['table_4', 'table_5']} is broken": lambda task, plan: [
        shard_of(plan, 4).update(devices=[0]),
        shard_of(plan, 5).update(devices=[1]),
    ],
    "'apart': ['table_7', 'table_8', 'table_9']} is broken": lambda task, plan: [
        shard_of(plan, table).update(devices=[0]) for table in (7, 8)
    ],
    "'max_shards': 2} is broken": lambda task, plan: task["constraints"][1].update(sharding_types=["row_wise"]),
    "step_ms is": lambda task, plan: plan.update(step_ms=0.5 * plan["step_ms"]),
    "the bound": lambda task, plan: plan.update(bound_ms=2 * plan["step_ms"]),
}


@pytest.mark.parametrize("rule", SPOILERS)
def test_broken_rules_are_found(planned, rule):
    task, plan = copy.deepcopy(planned)
    assert broken_rules(task, plan) == []
    SPOILERS[rule](task, plan)
    assert any(rule in text for text in broken_rules(task, plan)), broken_rules(task, plan)
