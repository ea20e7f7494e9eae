"""What no reader of files takes: the message names the file, and the field, value or rule that is wrong."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.plan_requests import load_requests
from safetensors import safe_open
from safetensors.numpy import load_file, save, save_file

import shardwright as sw
from shardwright.cost import load_model, save_model
from shardwright.cost.model import MONOTONE
from shardwright.cost.neuroshard import NeuroShardModel
from shardwright.cost.neuroshard.model import SHAPES
from shardwright.cost.published import PublishedModel
from shardwright.errors import InvalidInput, InvalidPlan
from shardwright.learned.arrays import TABLE_FEATURES
from shardwright.learned.policy_files import SavedPolicy, load_policy, save_policy
from shardwright.measure.samples import export_parquet, read_samples
from shardwright.measure.store import NAME
from shardwright.modelling.correction import with_cut_price
from shardwright.sharding import Plan
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.rank_map_files import load_rank_maps, rank_map_bytes
from shardwright.sharding.torchrec_files import plan_from_sharding_plan
from shardwright.task.link_files import load_links
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import constrained_task, task_of
from shardwright.workload.profile import profile_logs
from tests.unit.cli.models import linear_model
from tests.unit.cost.neuroshard.test_neuroshard_model import filled, networks_for
from tests.unit.measure.test_store import filled as store_of
from tests.unit.sharding.test_costs import tuned_plan
from tests.unit.sharding.test_torchrec_files import TASK, document
from tests.unit.task.test_link_files import MEASURED

Change = Callable[[Path], object]


def in_json(value: object, *place: Any) -> Change:
    """Sets what stands at a place of a JSON document; without a value, removes it."""

    def change(path: Path) -> None:
        whole = inner = json.loads(path.read_text())
        for key in place[:-1]:
            inner = inner[key]
        if value is GONE:
            del inner[place[-1]]
        else:
            inner[place[-1]] = value
        path.write_text(json.dumps(whole))

    return change


def in_header(**fields: str | None) -> Change:
    """Sets fields of the header of a safetensors file; None removes a field."""
    return partial(_rewritten, arrays={}, fields=fields)


def array(name: str, values: Any) -> Change:
    """Sets an array of a safetensors file; a function changes the array, None removes it."""
    return partial(_rewritten, arrays={name: values}, fields={})


def _rewritten(path: Path, arrays: dict[str, Any], fields: dict[str, str | None]) -> None:
    with safe_open(path, framework="np") as file:
        header = file.metadata() | fields
    kept = load_file(path)
    for name, values in arrays.items():
        kept[name] = values(kept[name]) if callable(values) else values
    given = {name: values for name, values in kept.items() if values is not None}
    save_file(given, path, {name: value for name, value in header.items() if value is not None})


def negative(values: Any) -> Any:
    values[0, 0] = -1
    return values


def content(text: str | bytes) -> Change:
    return lambda path: path.write_bytes(text if isinstance(text, bytes) else text.encode())


def rank_maps(arrays: dict[str, Any], **fields: object) -> Change:
    """A file of rank maps with other arrays, or other fields of its header."""
    header = json.dumps({"format": 1, "tables": [{"name": "t", "rows": 4}]} | fields)
    return content(save(arrays, metadata={"rank_maps": header}))


def claimed(dtype: str, shape: list[int], stop: int) -> bytes:
    """A safetensors file whose header claims an array that is not there."""
    header = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, stop]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


def unknown_type(path: Path) -> None:
    """Makes an array of a number type that numpy does not know."""
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header["head.1.bias"] |= {"dtype": "F8_E4M3", "shape": [4]}
    path.write_bytes(len(text := json.dumps(header).encode()).to_bytes(8, "little") + text + whole[8 + length :])


def sql(statement: str) -> Change:
    """A sample store after someone's own SQL."""

    def change(folder: Path) -> None:
        with sqlite3.connect(folder / NAME) as db:
            db.execute(statement)
        db.close()

    return change


def rows(change: Callable[[pa.Table], pa.Table]) -> Change:
    return lambda path: pq.write_table(change(pq.read_table(path)), path)


def removed(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


GONE = object()
F32 = np.float32
NUMBERS = {"0": np.zeros(1, np.uint8)}


@cache
def planned() -> Plan:
    return sw.plan(constrained_task(), cost_model=SimpleCostModel())


def neuroshard() -> NeuroShardModel:
    return NeuroShardModel(filled(SHAPES), networks_for(2, 4, batch_size=512), {"device": "cpu", "hardware": "test"})


def saved_policy(path: Path) -> None:
    save_policy(SavedPolicy("dreamshard", {"w": np.ones((2, 3), F32), "bias": np.zeros(1, F32)}, {"seed": "3"}), path)


def saved_checkpoint(path: Path) -> None:
    from torch import zeros

    from shardwright.learned.checkpoints import save_checkpoint

    save_checkpoint(path, {"a": zeros(100)}, {"step": 1})


def checkpoint(path: Path) -> object:
    from shardwright.learned.checkpoints import load_checkpoint

    return load_checkpoint(path)


class Kind(NamedTuple):
    """A kind of file: its name, how a good one is made, how it is read, and what is said of one that is cut short."""

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    cut: str | None = None


KINDS = {
    "plan": Kind("plan.json", lambda path: planned().save(path), Plan.load, ""),
    "tuned": Kind("plan.json", lambda path: tuned_plan().save(path), Plan.load),
    "sharding plan": Kind(
        "theirs.json",
        lambda path: path.write_text(json.dumps(document())),
        lambda path: plan_from_sharding_plan(json.loads(path.read_text()), TASK, str(path)),
    ),
    "ranks": Kind(
        "plan.ranks.safetensors",
        lambda path: path.write_bytes(rank_map_bytes({"t": RankMap(50, np.arange(20)[::-1])})),
        load_rank_maps,
        "",
    ),
    "links": Kind("links.json", MEASURED.save, load_links, ""),
    "model": Kind("m.safetensors", lambda path: save_model(linear_model(), path), load_model, "name a model file"),
    "neuroshard": Kind("m.safetensors", lambda path: save_model(neuroshard(), path), load_model, "name a model file"),
    "corrected": Kind(
        "m.safetensors",
        lambda path: save_model(with_cut_price(PublishedModel("h200"), task_of(12, 3), 0.1), path),
        load_model,
        "name a model file",
    ),
    "policy": Kind(
        "p.safetensors", saved_policy, partial(load_policy, strategy="dreamshard"), "not a whole safetensors"
    ),
    "checkpoint": Kind("state", saved_checkpoint, checkpoint, "not a whole safetensors file … remove it to begin anew"),
    "store": Kind("store", store_of, read_samples),
    "samples": Kind(
        "samples.parquet",
        lambda path: export_parquet([store_of(path.with_name("store"))], path),
        read_samples,
        "the file of samples is damaged, or is none",
    ),
    "requests": Kind("requests.json.gz", Path.touch, load_requests),
    "csv": Kind("a.csv", Path.touch, profile_logs),
    "jsonl": Kind("a.jsonl", Path.touch, profile_logs),
    "events": Kind("log.txt", Path.touch, profile_logs),
}
A_SHARD = {"table": "x", "rows": [0, 1], "columns": [0, 1], "devices": [0]}
A_TRIAL = {"round": 1, "name": "x", "promised_ms": 1, "measured_ms": 1, "accepted": True}
BAGS = ("sharding_plan", "sparse.bags")
FEATURES = json.dumps(["rows"])

# The kind of file, what is done to a good one, and what the message must name; "…" stands for anything.
CASES: list[tuple[str, Change, str]] = [
    ("plan", in_json(2, "format"), "format is 2, this version of shardwright reads plan files of format 1"),
    ("plan", in_json([], "shards"), "is missing from the plan"),
    ("plan", in_json([A_SHARD], "shards"), "'x', which the task does not have"),
    ("plan", in_json([A_SHARD | {"rows": [3, 1]}], "shards"), "start < stop"),
    ("plan", in_json([A_SHARD | {"rows": "all"}], "shards"), "shards[0]"),
    ("plan", in_json(1, "surprise"), "surprise"),
    ("plan", in_json("\x1b[31mred", "strategy"), r"strategy is '\x1b[31mred', must be printable text"),
    ("plan", in_json("a\nb", "cost_model"), "cost_model is … must be printable text"),
    ("plan", in_json(-1.0, "bound_ms"), "bound_ms: Expected `float` >= 0.0, got -1.0"),
    ("plan", in_json(1e9, "bound_ms"), "bound_ms is 1000000000.0, above the step"),
    ("plan", in_json({"batch_size": 0}, "task"), "task"),
    ("plan", in_json(GONE, "devices", -1), "ranks 0 to 3 in order"),
    ("plan", in_json(-1.0, "devices", 1, "forward_ms"), "devices[1].forward_ms: Expected `float` >= … got -1.0"),
    ("plan", in_json(1e308, "devices", 1, "backward_ms"), "devices[1].backward_ms: Expected `float` <= … got 1e+308"),
    ("plan", in_json(-5, "devices", 1, "memory_bytes"), "devices[1].memory_bytes: Expected `int` >= … got -5"),
    ("plan", in_json(10**200, "devices", 1, "memory_bytes"), "devices[1].memory_bytes: Expected `int` <= … got 1000"),
    ("tuned", in_json(-1.0, "tuning", "measured_ms"), "tuning.measured_ms: Expected `float` >= 0.0, got -1"),
    ("tuned", in_json(1e200, "tuning", "floor_ms"), "tuning.floor_ms: Expected `float` <= … got 1e+200"),
    ("tuned", in_json([2.0, 1.0], "tuning", "interval_ms"), "two times in order"),
    ("tuned", in_json([1.0], "tuning", "forward_ms"), "one for each of 4 devices"),
    ("tuned", in_json("fast", "tuning", "measured_ms"), "measured_ms"),
    ("tuned", in_json(1, "tuning", "spare"), "tuning: unknown field 'spare'; known fields are measured_ms"),
    ("tuned", in_json([A_TRIAL | {"spare": 1}], "tuning", "history"), "spare"),
    ("tuned", in_json([A_TRIAL | {"round": -1}], "tuning", "history"), "tuning.history[0].round: Expected `int` >= 0"),
    ("tuned", in_json([A_TRIAL | {"name": "\x1b[2J"}], "tuning", "history"), "printable"),
    ("sharding plan", in_json(2, "format"), "format is 2"),
    ("sharding plan", in_json({}, "sharding_plan"), "holds no tables"),
    ("sharding plan", in_json(GONE, *BAGS, "c"), "table 'c' of the task is not in this plan"),
    ("sharding plan", in_json(document()["sharding_plan"]["sparse.bags"]["c"], *BAGS, "z"), "no table 'sparse.bags.z'"),
    ("sharding plan", in_json(document()["sharding_plan"]["sparse.bags"], "sharding_plan", "more"), "occurs twice in"),
    ("sharding plan", in_json(3, *BAGS, "c"), "must be a mapping"),
    ("sharding plan", in_json(None, *BAGS, "c", "shards"), "shards is missing"),
    ("sharding plan", in_json("rank:4/cuda:0", *BAGS, "c", "shards", 0, "placement"), "4 ranks"),
    ("sharding plan", in_json(["a", 2], *BAGS, "c", "shards", 0, "sizes"), "Expected `int`"),
    ("ranks", content(save({})), "its header has no 'rank_maps'"),
    ("ranks", content(save(NUMBERS, metadata={"rank_maps": "{"})), "is no JSON"),
    ("ranks", content(save(NUMBERS, metadata={"rank_maps": "[" * 100_000})), "is no JSON"),
    ("ranks", rank_maps(NUMBERS, format=2), "format is 2"),
    ("ranks", rank_maps(NUMBERS, surprise=2), "unknown field 'surprise'"),
    ("ranks", rank_maps(NUMBERS, tables=[{"name": "t"}]), "'rows' is missing"),
    ("ranks", rank_maps({}), "0 arrays for 1 tables"),
    ("ranks", rank_maps({"1": np.zeros(1, np.uint8)}), "1 arrays for 1 tables"),
    ("ranks", rank_maps({"0": np.zeros(5, np.uint8)}), "table 't': an array of type U8 and shape … for a table of 4 rows"),
    ("ranks", rank_maps({"0": np.zeros((1, 1), np.uint8)}), "shape [1, 1]"),
    ("ranks", rank_maps({"0": np.zeros(1, np.int64)}), "an array of type I64"),
    ("ranks", rank_maps({"0": np.array([4], np.uint8)}), "id 4 for a table of 4 rows"),
    ("ranks", rank_maps({"0": np.array([2**63 + 1], np.uint64)}), f"id {2**63 + 1} for a table"),
    ("ranks", rank_maps({"0": np.array([2, 2], np.uint8)}), "table 't': rank map: an id occurs twice"),
    ("ranks", rank_maps({"0": np.zeros(0, np.uint8)}, tables=[{"name": "t", "rows": -1}]), "a table of -1 rows"),
    ("ranks", removed, "there is no such file of rank maps; name"),
    ("links", in_json(2, "format"), "format is 2, this version of shardwright reads links files of format 1"),
    ("links", in_json(0, "links", "all_to_all", "intra", "bandwidth"), "links.all_to_all.intra.bandwidth"),
    ("links", in_json({}, "links", "broadcast"), "links: unknown field 'broadcast'"),
    ("links", in_json({"pooled": 1}, "links", "modules"), "links.modules: unknown field 'pooled'"),
    ("links", in_json({"pooled_ms": -1}, "links", "modules"), "links: modules: pooled_ms"),
    ("links", in_json({"device": "h100"}, "cluster"), "cluster: the field 'hosts' is missing"),
    ("links", in_json(3, "speed"), "unknown field 'speed'"),
    ("links", removed, "there is no such links file"),
    ("model", in_header(format="1"), "format is '1' … train the model again"),
    ("model", in_header(format=None), "format is None"),
    ("model", in_header(kind="policy"), "kind 'policy'"),
    ("model", in_header(features=FEATURES), "other features"),
    ("model", in_header(head="cubic"), "head is 'cubic'"),
    ("model", in_header(head=None), "does not say which head"),
    ("model", array("head.1.bias", np.zeros(3, F32)), "head.1.bias has shape (3,), must be"),
    ("model", array("scale", lambda values: np.full_like(values, np.nan)), "scale holds NaN"),
    ("model", array("caches", np.array([0, 1], F32)), "caches must be greater than 0"),
    ("model", array("scale", None), "scale is missing"),
    *(("model", array(name, negative), f"{name} must not be negative") for name in MONOTONE),
    ("model", content(claimed("F32", [2_500_000_000], 10_000_000_000)), "not a whole safetensors file"),
    ("model", content((10_000_000_000).to_bytes(8, "little") + b"{}"), "not a whole safetensors file"),
    ("model", removed, "there is no such cost model; name a model"),
    ("model", folder, "is a folder"),
    ("neuroshard", in_header(format="1"), "format is '1' … train the model again"),
    ("neuroshard", in_header(kind="policy"), "kind 'policy'"),
    ("neuroshard", in_header(kind="compute"), "other features"),
    ("neuroshard", in_header(features=FEATURES), "other features"),
    ("neuroshard", in_header(devices="2,4,8"), "communication.8.forward.mean is missing"),
    ("neuroshard", in_header(devices="2,2"), "different numbers"),
    ("neuroshard", in_header(devices="0"), "whole numbers from 1"),
    ("neuroshard", in_header(devices="99999999999999999999"), "whole numbers from 1"),
    ("neuroshard", in_header(devices="²"), "whole numbers from 1"),
    ("neuroshard", in_header(devices=",".join(map(str, range(1, 100)))), "at most 64"),
    ("neuroshard", in_header(communication_batch_size=None), "communication_batch_size is ''"),
    ("neuroshard", in_header(communication_batch_size="-5"), "communication_batch_size is '-5'"),
    ("neuroshard", array("head.1.bias", np.zeros(3, F32)), "head.1.bias has shape (3,), must be"),
    ("neuroshard", array("communication.4.backward.0.weight", np.zeros((128, 5), F32)), "backward.0.weight has shape (128, 5)"),
    ("neuroshard", array("communication.2.forward.mean", np.full(4, np.inf, F32)), "forward.mean holds NaN or infinite"),
    ("neuroshard", array("encoder.0.weight", np.zeros((128, 21), np.int8)), "encoder.0.weight … type I8, must be F32"),
    ("neuroshard", array("feature_std", np.zeros(21, F32)), "feature_std must be greater than 0"),
    ("neuroshard", array("communication.2.forward.std", np.zeros(4, F32)), "std must be greater"),
    ("neuroshard", array("encoder.1.bias", None), "encoder.1.bias is missing"),
    ("neuroshard", unknown_type, "type F8_E4M3, must be F32"),
    ("corrected", in_header(base=""), "does not say which model it corrects"),
    ("corrected", in_header(base="[]"), "does not say which model it corrects"),
    ("corrected", in_header(base='{"format": "3", "kind": "other"}'), ""),
    ("corrected", in_header(base='{"format": "3", "kind": "published", "device": "abacus"}'), "abacus"),
    ("corrected", in_header(kind="published", device="h200", optimizer="sgd"), "published"),
    ("policy", in_header(format="2"), "not a policy of format '1' (it says kind 'policy', format '2') … learn dreamshard"),
    ("policy", in_header(format=None), "format None"),
    ("policy", in_header(kind="checkpoint"), "kind 'checkpoint'"),
    ("policy", in_header(strategy="autoshard"), "learned by strategy 'autoshard', not by 'dreamshard'"),
    ("policy", in_header(strategy=None), "learned by strategy None … shardwright learn dreamshard"),
    ("policy", in_header(features=json.dumps(TABLE_FEATURES[:-1])), "learned on other table features"),
    ("policy", in_header(features=None), "learned on other table features … shardwright learn dreamshard"),
    ("policy", array("bias", np.full(1, np.nan, F32)), "weights 'bias' hold NaN or infinity"),
    ("policy", array("bias", np.full(1, np.inf, F32)), "weights 'bias' hold NaN or infinity"),
    ("policy", array("bias", np.zeros(1)), "bias holds numbers of type F64, must be F32"),
    ("policy", lambda path: save_model(linear_model(), path), "kind 'compute'"),
    ("policy", removed, "there is no such policy; name a policy file"),
    ("policy", folder, "is a folder"),
    ("checkpoint", saved_policy, "not a checkpoint of format '1' (it says kind 'policy'"),
    *(("checkpoint", in_header(state=state), "not a whole checkpoint") for state in ("", "[1]", "{", "9" * 5000)),
    ("checkpoint", folder, "is a folder, expected a checkpoint"),
    ("store", sql("PRAGMA user_version = 4"), "is of format version 4, this release reads 3"),
    ("store", sql("CREATE TRIGGER t AFTER INSERT ON visits BEGIN DELETE FROM visits; END"), "is no sample store"),
    ("store", sql("CREATE VIEW v AS SELECT 1"), "is no sample store"),
    ("store", sql("UPDATE works SET shards = 'text'"), "the shards of a set are no numbers"),
    ("store", sql("UPDATE works SET shards = x'00'"), "is damaged"),
    ("store", sql("UPDATE works SET shards = zeroblob(0)"), "no numbers that can be"),
    ("store", sql("UPDATE works SET features = x'00'"), "is damaged"),
    ("store", sql("UPDATE visits SET forward_ms = 'soon'"), "is damaged"),
    ("store", sql("UPDATE hardware SET fingerprint = '[]'"), "a fingerprint is no object"),
    ("store", sql("UPDATE hardware SET fingerprint = '{'"), "is damaged"),
    ("store", sql("DROP TABLE sets"), "no such table"),
    ("store", sql("DELETE FROM works"), "is damaged"),
    ("store", sql("DELETE FROM visits"), "holds no readable samples"),
    ("store", lambda path: (path / NAME).write_bytes(b""), "holds no samples; collect some"),
    ("store", lambda path: (path / NAME).write_bytes(b"no database" * 1000), "is damaged, or no sample store … move it away"),
    ("store", lambda path: (path / NAME).unlink(), "is no sample store (samples.sqlite is missing); make one with"),
    ("samples", rows(lambda table: table.replace_schema_metadata(None)), "shardwright"),
    ("samples", rows(lambda table: table.replace_schema_metadata({b"shardwright": b'{"format": 1}'})), "format version 1"),
    ("samples", rows(lambda table: table.drop(["label"])), "columns are not those"),
    (
        "samples",
        rows(lambda table: table.set_column(0, table.field(0), pa.array([None] * table.num_rows, pa.int64()))),
        "column sample has no value",
    ),
    ("samples", content(b"x" * 5000), "the file of samples is damaged, or is none"),
    ("samples", removed, "there is no such file of samples"),
    ("requests", content(b""), "holds no requests of plans"),
    ("requests", content(b"no gzip"), "holds no requests of plans"),
    ("requests", content(gzip.compress(b"[1]")), "holds no requests of plans"),
    ("requests", content(gzip.compress(b'{"format": 9}')), "holds no requests of plans"),
    ("requests", removed, "holds no requests of plans"),
    ("csv", content(""), "Empty CSV file"),
    ("csv", content("user,item\n"), "the log is empty: columns user, item have no value"),
    ("csv", content("user,item\n1,2\n1\n"), "Row #3: Expected 2 columns, got 1"),
    ("csv", content("user,item\n1,2,3\n"), "Row #2: Expected 2 columns, got 3"),
    ("csv", content("1,2\n3,4\n"), "the first line is '1,2', a sample … add --no-header"),
    ("csv", content("0,1,,68fd1e64,\n1,,2,68fd1e64,\n"), "the first line is '0,1,,68fd1e64,', a sample … --columns"),
    ("csv", content("user,user\n1,2\n"), "column 'user' occurs twice"),
    ("csv", content("user;price,EUR;item\n1;0,50;3\n"), "may be separated by commas and semicolons"),
    ("csv", content("user;item|kind\n1;2|3\n"), "may be separated by semicolons and bars"),
    ("csv", content("user;item\n1\n"), "Row #2: Expected 2 columns, got 1"),
    ("csv", content("user,\n1,2\n"), "column 2 is named '', must be printable text"),
    ("csv", content("user,item\n-1,-2\n"), "column 'user': id -1 is negative … column 'item': id -2 is negative"),
    ("csv", content("price\n0.5\n"), "no column holds embedding ids … its columns: price (double"),
    ("csv", content("user\n" + "7" * 9_000_000 + "\n"), "straddling object"),
    ("csv", content("user,item\n" + "1234567,7654321\n" * 300_000 + "1,x\n"), "CSV column 'item': … invalid value 'x'"),
    (
        "csv",
        content("user,items\n" + "1234567,1 2 3\n" * 400_000 + "1,1 two 3\n"),
        "column 'items' starts with lists of integers but later holds another value",
    ),
    ("csv", removed, "there is no such file"),
    ("csv", folder, "is a directory; name its files"),
    ("jsonl", content(""), "no column holds"),
    ("jsonl", content("[1]\n"), "holds a JSON array"),
    ("jsonl", content('\n [{"a": 1},\n{"a": 2}]\n'), "holds a JSON array"),
    ("jsonl", content('{"a": 1}\n{"a": "x"}\n'), "column 'a' changed from number to string"),
    ("jsonl", content('{"a": 1}\n{"a'), ""),
    ("events", content("user item\n1 2\n"), "line 1: 'user item' is not an event; an event file has lines of two integers"),
    ("events", content("1 2\n3 x\n"), "line 2: '3 x' is not an event"),
    ("events", content("1 2\n\n3 4 5\n"), "line 3: '3 4 5' is not an event"),
    ("events", content("1 2\n3\n"), "line 2: '3' is not an event"),
    ("events", content("1 2\n3 0.5\n"), "line 2: '3 0.5' is not an event"),
    ("events", content("1 2\n3 \n"), "line 2: '3 ' is not an event"),
    ("events", content("1 2\n3 99999999999999999999\n"), "line 2: '3 99999999999999999999' is not an event"),
    ("events", content(b"1 2\n\xff\xfe\n"), "line 2: ' … xff … xfe"),
    ("events", content("7" * 9_000_000), "line 1: '7777 … is not an event"),
    ("events", content(b"1 2\n" + b"\r" * 9_000_000 + b"\n3 x\n"), "line 3: '3 x' is not an event"),
    ("events", content("12345 678\n" * 700_000 + "1-2\n"), "line 700001: '1-2'"),
    ("events", content("1 2\n1 -3\n"), "column 'item': id -3 is negative"),
    ("events", content(""), "the log is empty"),
    ("events", content("\n\n"), "the log is empty"),
]  # fmt: skip


def says(named: str) -> str:
    return ".*".join(map(re.escape, named.split(" … ")))


@pytest.mark.parametrize(("kind", "change", "named"), CASES, ids=[f"{kind}: {named[:40]}" for kind, _, named in CASES])
def test_the_message_names_the_file_and_what_is_wrong(kind: str, change: Change, named: str, tmp_path: Path) -> None:
    path = tmp_path / KINDS[kind].name
    KINDS[kind].make(path)
    change(path)
    with pytest.raises((InvalidInput, InvalidPlan), match=rf"(?s){re.escape(path.name)}.*{says(named)}"):
        KINDS[kind].read(path)


@pytest.mark.parametrize("kind", [kind for kind, file in KINDS.items() if file.cut is not None])
def test_a_file_cut_short_is_refused_wherever_it_ends(kind: str, tmp_path: Path) -> None:
    path = tmp_path / KINDS[kind].name
    KINDS[kind].make(path)
    whole = path.read_bytes().rstrip(b"\n")
    for length in {0, 1, 7, 8, 9, 100, len(whole) - 1, *range(0, len(whole), max(1, len(whole) // 100))}:
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match=rf"{re.escape(path.name)}.*{says(KINDS[kind].cut or '')}"):
            KINDS[kind].read(path)
