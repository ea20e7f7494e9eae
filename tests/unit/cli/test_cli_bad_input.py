"""Input that every command refuses: it exits with code 2 and one line that names the fault, and leaves no file behind."""

import gzip
import json
import shlex

import pytest

import shardwright as sw
from shardwright.cost import save_model
from shardwright.sharding.torchrec_files import sharding_plan_to_export
from shardwright.task.files import save_tables
from shardwright.testing.tasks import task_of
from tests.unit.cli.models import linear_model
from tests.unit.report.test_entry import verified
from tests.unit.sharding.test_stats_table import ROWS, table
from tests.unit.sharding.test_stats_table import log as stats_log

TABLES = """tables:
  - {name: user, rows: 1000, dim: 16}
  - {name: item, rows: 500, dim: 16}
"""
LEARN = "learn dreamshard --tasks train.yaml --model model.safetensors --rounds 2"
CLUSTER = "plan tables.yaml --batch 8 --devices"
GROUPS = "plan task.yaml --sharding-group-size"
FROM = "plan task.yaml --from plan.json"
LOG = "profile log.csv"
ENDLESS = "9" * 5000

# The command line, and the names in the message: the option or the file, and the value.
CASES = [
    ("calibrate --minutes 0", "minutes is 0"),
    ("calibrate --aim 2", "aim is 2"),
    ("calibrate --device abacus", "device is 'abacus'"),
    ("calibrate nope.yaml", "nope.yaml"),
    ("calibrate --links --devices 1", "1 device"),
    ("calibrate --links --aim 0.1", "--aim"),
    ("calibrate --links task.yaml", "--links"),
    ("calibrate --links --minutes 0", "minutes is 0"),
    ("calibrate --links --device abacus", "device is 'abacus'"),
    ("calibrate --links -o no/folder/links.json", "no/folder"),
    ("calibrate --devices 2", "--devices needs --links"),
    ("calibrate -o links.json", "--output needs --links"),
    ("models burn", "action is 'burn'"),
    ("models show", "name"),
    ("models show nobody", "'nobody'"),
    ("models show h200/publishd", "did you mean 'h200/published'"),
    ("models list x", "list takes no name"),
    ("models remove h200/published", "comes with the package"),
    ("collect", "--output"),
    ("collect -o samples --samples 0", "samples is 0"),
    ("collect -o samples --device tpu", "device is 'tpu'"),
    ("collect -o samples --seed -1", "Invalid value for '--seed'"),
    ("collect -o samples --optimizer lion", "optimizer is 'lion'"),
    ("collect -o samples --pool mine", "unknown pool 'mine'"),
    ("collect -o samples --memory '4 XB'", "--memory: unknown unit 'XB'"),
    ("collect -o samples --batch-size 0", "batch_sizes"),
    ("collect -o /dev/null/samples", "/dev/null"),
    ("collect -o samples --collectives --memory '4 GB'", "--memory does not apply to --collectives"),
    ("collect -o samples --collectives --optimizer sgd", "--optimizer does not apply to --collectives"),
    ("collect -o samples --collectives --backend fbgemm", "--backend does not apply"),
    ("collect -o samples --collectives --sequence-share 0.5", "--sequence-share does not apply"),
    ("collect -o samples --world 2", "--world needs --collectives"),
    ("collect -o samples --runs 3", "--runs needs --collectives"),
    ("collect -o samples --timeout 3", "--timeout needs --collectives"),
    ("collect -o samples --collectives --world 1", "world is 1"),
    ("collect -o samples --collectives --timeout 0", "timeout is 0.0"),
    ("collect -o samples --collectives --runs 0", "runs"),
    ("collect -o samples --collectives --device tpu", "device is 'tpu'"),
    ("collect -o samples --collectives --batch-size 1", "batch_sizes"),
    ("collect -o samples --collectives --samples 0", "samples is 0"),
    ("compare task.yaml --strategies dim,best", "unknown strategy 'best'"),
    ("compare task.yaml --strategies ''", "unknown strategy ''"),
    ("compare task.yaml --time-limit -1", "time_limit is -1"),
    ("compare task.yaml --rounds 0", "--rounds"),
    ("compare task.yaml --measure --device tpu", "device is 'tpu'"),
    ("compare task.yaml -o /dev/null/x", "/dev/null/x"),
    ("compare greedy.json --strategies dim,greedy -o .", "greedy.json: is an input too"),
    ("demo -o /dev/null/x", "/dev/null/x"),
    ("demo --model nope.safetensors", "nope.safetensors"),
    ("demo --quick --model model.safetensors -o .", "task.yaml: is not the demo's task"),
    (f"{LEARN} -o policy --steps 5", "--steps 5"),
    (f"{LEARN} -o policy --option preset=published", "iterations"),
    (f"{LEARN} -o policy --option episode=5", "did you mean 'episodes'?"),
    (f"{LEARN} -o policy --option seed=5", "seed is already set"),
    (f"{LEARN} -o policy --option episodes=5 --option episodes=6", "episodes is already set"),
    (f"{LEARN} -o policy --option episodes", "NAME=VALUE"),
    (f"{LEARN} -o policy --option episodes=1.5", "whole number"),
    (f"{LEARN} -o policy --option learning_rate=fast", "must be a number"),
    (f"{LEARN} -o policy --option learning_rate=-1", "learning_rate is -1.0"),
    (f"{LEARN} -o policy --rounds 0", "--rounds"),
    (f"{LEARN} -o policy --checkpoint no/such/state", "no/such"),
    (f"{LEARN} -o policy --log /dev/null/x", "/dev/null/x"),
    (f"{LEARN} -o policy --tasks none.yaml", "none.yaml"),
    (f"{LEARN} -o policy --model none.safetensors", "none.safetensors"),
    (f"{LEARN} -o no/such/policy", "no/such"),
    (f"{LEARN} -o train.yaml", "train.yaml: is an input too"),
    (f"{LEARN} -o policy --checkpoint train.yaml", "train.yaml: is an input too"),
    (f"{LEARN} -o policy --checkpoint policy", "two results"),
    (f"{LEARN} -o policy --ray nowhere:1", "--ray nowhere:1"),
    (
        "learn dreamshard --tasks train.yaml --model model.safetensors -o policy --measured",
        "measured costs need no cost model",
    ),
    ("learn rnn --tasks train.yaml -o policy", "'rnn'"),
    ("learn dreamshard --tasks empty.yaml --model model.safetensors -o policy", "the training set has no task"),
    ("learn dreamshard --tasks mixed.yaml -o policy", "several device types (cpu, h100)"),
    ("drift plan.json none.parquet", "none.parquet"),
    ("drift plan.json tables.yaml", "none of its tables (user, item) is in plan.json"),
    ("drift plan.json tables.yaml --sequence user", "is a file of tables"),
    ("drift plan.json same.yaml --worth-it 2", "worth_it is 2.0"),
    ("drift plan.json tables.yaml -o tables.yaml", "tables.yaml: is an input too"),
    ("drift small.yaml tables.yaml", "small.yaml: unknown field 'batch_size'"),
    ("nope", "No such command 'nope' (see: shardwright --help)"),
    ("plan", "Missing argument 'TASK' (see: shardwright plan --help)"),
    ("plan task.yaml --nope", "No such option: --nope"),
    ("plan task.yaml --seed x", "Invalid value for '--seed'"),
    ("plan task.yaml --seed -1", "Invalid value for '--seed'"),
    ("plan task.yaml --model model.safetensors -o task.yaml", "task.yaml: is an input too"),
    ("plan task.yaml --model model.safetensors -o model.safetensors", "model.safetensors: is an input too"),
    ("plan nope.yaml", "nope.yaml"),
    ("plan task.yaml --rank-maps none.safetensors", "there is no such file of rank maps"),
    ("plan task.yaml --strategy best", "unknown strategy 'best'"),
    ("plan task.yaml --time-limit nan", "time_limit is nan"),
    ("plan task.yaml --time-limit 2m", "must be a number"),
    ("plan task.yaml --time-limit -1", "time_limit is -1"),
    ("plan task.yaml --model nope.safetensors", "nope.safetensors"),
    ("plan task.yaml --model h200/publishd", "did you mean 'h200/published'"),
    ("plan task.yaml -o no/such/folder/plan.json", "no/such/folder"),
    ("plan task.yaml -o /", "is a folder"),
    ("plan task.yaml --from nope.json", "nope.json"),
    (f"{FROM} --move-cost -1", "move_cost is -1.0"),
    (f"{FROM} --move-cost nan", "move_cost is nan"),
    (f"{FROM} --strategy greedy", "'greedy' cannot start from a plan"),
    (f"{FROM} --balance-memory 1% --least-moves 1%", "leave one of them out"),
    (f"{FROM} --least-moves much", "least_moves is"),
    (f"{FROM} --least-moves 1% --move-cost 1", "goes with no move_cost"),
    (f"{FROM} --most-moved '1 GB' --move-cost inf", "goes with no move_cost"),
    (f"{FROM} --most-moved '1 GB' --least-moves 1%", "goes with no move_cost"),
    (f"{FROM} --most-moved much", "most_moved: "),
    (f"{FROM} --most-moved '-1 GB'", "most_moved: "),
    ("plan task.yaml --move-cost 1", "move_cost is 1.0"),
    ("plan task.yaml --least-moves 1%", "--from"),
    ("plan task.yaml --most-moved '1 GB'", "--from"),
    ("plan task.yaml --cross-replicas", "no plan to start from"),
    ("plan task.yaml --balance-memory much", "balance_memory is"),
    ("plan task.yaml --balance-memory -1%", "balance_memory is"),
    ("plan task.yaml --export torchrec", "-o"),
    ("plan task.yaml --export torchrec -o new.json --runs-on shardwright", "--runs-on shardwright"),
    ("plan task.yaml --export torchrec -o new.json --sharding-group-size 2", "--sharding-group-size"),
    ("plan tables.yaml", "'batch_size' is missing"),
    ("plan tables.yaml --batch 8", "'topology' is missing"),
    ("plan tables.yaml --batch many --devices h100-8", "--batch is 'many'"),
    (f"{CLUSTER} h100", "did you mean 'h100-8'"),
    (f"{CLUSTER} h100-8 --hosts 0", "hosts is 0"),
    (f"{CLUSTER} h100-8 --hosts {ENDLESS}", "--hosts is '99"),
    (f"plan task.yaml --batch {ENDLESS}", "--batch is '99"),
    (f"{CLUSTER} h100-8 --reserve 100%", "leaves no memory"),
    (f"{CLUSTER} h100-8 --reserve 16", "--reserve: '16'"),
    (f"{GROUPS} 3", "size is 3"),
    (f"{GROUPS} 0", "'0'"),
    (f"{GROUPS} two", "'two'"),
    (f"{GROUPS} 2 --fully-sharded --sync-interval 3", "leave it 1"),
    ("plan task.yaml --fully-sharded", "--fully-sharded"),
    ("plan task.yaml --sync-interval 3", "--sync-interval"),
    (f"{GROUPS} 2 --from plan.json", "--from"),
    (f"{GROUPS} 2 --move-cost 1", "--move-cost"),
    (f"{GROUPS} 2 --cross-replicas", "--cross-replicas"),
    (f"{GROUPS} auto --balance-memory 1%", "--balance-memory"),
    (f"{GROUPS} auto --least-moves 1%", "--least-moves"),
    (f"{GROUPS} auto --most-moved '1 GB'", "--most-moved"),
    (f"{GROUPS} 2 --runs-on shardwright", "--runs-on shardwright"),
    *(
        (f"plan --check task.yaml {option} {value}", option)
        for option, value in [
            ("--seed", 3),
            ("--seed", 0),
            ("--gap", 0),
            ("--time-limit", 0),
            ("--strategy", "dim"),
            ("--output", "x.json"),
            ("--from", "x.json"),
            ("--runs-on", "torchrec"),
            ("--fully-sharded", ""),
        ]
    ),
    ("plan --check broken.json", "broken.json: table 'table_0' is missing from the plan"),
    ("profile no-such-log.csv -o no/tables.yaml", "its folder does not exist"),
    (f"{LOG} --column nobody", "nobody"),
    (f"{LOG} --sequence user", "'user' is not a profiled column of lists"),
    (f"{LOG} --rows most", "Invalid value for '--rows'"),
    (f"{LOG} --rows max_id", "--rows distinct, or leave columns out with --exclude 'a name'"),
    (f"{LOG} --columns a9..b3", "'a9..b3'"),
    (f"{LOG} --task new.yaml", "save them with -o tables.yaml"),
    (f"{LOG} --topology x", "unknown preset 'x'"),
    (f"{LOG} -o log.csv", "log.csv: is an input too"),
    (f"{LOG} --rank-maps ./log.csv", "log.csv: is an input too"),
    (f"{LOG} --rank-maps x -o x", "two results"),
    (f"{LOG} --rank-maps x --rows distinct", "--rows distinct"),
    (f"{LOG} --rank-maps x --rows max_id", "'a name' are text or too large, no row numbers; leave --rows away"),
    (f"{LOG} --rank-maps x --rank-map-rows 0", "Invalid value for '--rank-map-rows'"),
    (f"{LOG} --rank-maps x --column 'a name'", "no column has row numbers"),
    (f"{LOG} --rank-maps no/such/folder", "its folder does not exist"),
    (f"{LOG} --rank-map-rows 5", "--rank-maps"),
    ("profile huge.csv --rows max_id", "'user' are text or too large"),
    ("profile headless.csv", "--columns label"),
    ("report plan.json", "Missing option '--output'"),
    ("report nope.json -o report.html", "nope.json: there is no such plan file"),
    ("report plan.json -o /", "is a folder"),
    ("report plan.json -o no/report.html", "its folder does not exist"),
    ("report plan.json -o plan.json", "plan.json: is an input too"),
    ("report small.json -o report.html --measured measured.json", "measured.json: lists 4 devices"),
    ("report other.json -o report.html --measured measured.json", "it is a measurement of another plan"),
    ("report plan.json -o report.html --measured measured.json --measured measured.json", "more often than"),
    ("report plan.json -o report.html --measured measured.json --measure", "use one of them"),
    ("report plan.json -o report.html --measured hello.yaml", "not JSON"),
    ("review plan.json -o plan.json", "plan.json: is an input too"),
    ("review plan.json --which 1", "is no log"),
    ("review plan.json --pipeline sparse_dist", "leave --pipeline out"),
    ("review plan.json --most-moved much", "most_moved: "),
    ("review plan.json --most-moved '1 GB' --move-cost 1", "leave --move-cost out"),
    ("review small.yaml", "unknown field"),
    ("review hello.yaml", "neither a plan nor a log"),
    ("review none.json", "none.json"),
    ("review blank.json", "blank.json"),
    ("review plan.json --measure --device tpu", "device is 'tpu'"),
    ("review plan.json --task task.yaml", "leave --task out"),
    ("review torchrec.json", "name its task with --task"),
    ("review torchrec.json --task uneven.yaml", "the task has no table"),
    ("review two.log", "holds 2 plans, which begin in lines"),
    ("review two.log --which 3", "choose one of them with --which, from 1 to 2"),
    ("review two.log --which 1 --task task.yaml", "the task has no table 'user'; it has"),
    ("review two.log --task task.yaml --topology h100-8", "leave --topology out"),
    ("review two.log --task task.yaml --dense-ms 4", "leave --dense-ms out"),
    ("review two.log --which 1 --pipeline sparse_disk", "sparse_dist"),
    ("review two.log --which 1 --pipeline sparse_dist --dense-ms -1", "dense_ms"),
    ("review two.log --which 1 --dense-ms 4", "add --pipeline sparse_dist"),
    ("review none.log", "holds no planner statistics"),
    ("review two.log.gz", "decompress it with gunzip"),
    ("scale task.yaml --hosts 1,x", "--hosts is 'x'"),
    ("scale task.yaml --hosts 0", "hosts is 0"),
    (f"scale task.yaml --hosts {','.join(map(str, range(1, 70)))}", "69 clusters"),
    (f"scale task.yaml --hosts 1,{ENDLESS}", "--hosts is '99"),
    (f"scale task.yaml --batch-per-device {ENDLESS}", "--batch-per-device is '99"),
    ("scale task.yaml --hosts 999999999", "at most 65536 devices"),
    ("scale task.yaml --devices h100", "unknown preset"),
    ("scale 1x4-cpu.json --hosts 1,2 -o .", "1x4-cpu.json: is an input too"),
    ("scale task.yaml --price 3", "a device type and a number"),
    ("scale task.yaml --batch 5 --batch-per-device 5", "exclude each other"),
    ("scale task.yaml --dense-ms -1", "dense_ms is -1.0"),
    ("scale uneven.yaml", "memory differs"),
    ("scale none.yaml", "none.yaml"),
    ("show task.yaml", "task.yaml"),
    ("train samples", "--output"),
    ("train samples -o new.safetensors", "samples"),
    ("train samples -o new.safetensors --head round", "--head"),
    ("train samples -o new.safetensors --epochs 0", "--epochs"),
    ("train samples -o new.safetensors --network autoshard", "--network"),
    ("train samples -o new.safetensors --network neuroshard --head mlp", "leave --head out"),
    ("train samples -o no/folder/new.safetensors", "no/folder"),
    ("tune task.yaml --minutes 0", "minutes is 0"),
    ("tune task.yaml --minutes nan", "minutes is nan"),
    ("tune task.yaml --device tpu", "'cpu' or 'cuda'"),
    ("tune task.yaml -o /no/such/folder/plan.json", "/no/such/folder"),
    ("tune task.yaml --steps -o /no/such/folder/plan.json", "/no/such/folder"),
    ("tune task.yaml --steps --runs-on shardwright", "--steps"),
    ("verify plan.json --tolerance -1", "--tolerance is -1"),
    ("verify plan.json --tolerance nan", "--tolerance is nan"),
    ("verify plan.json --tolerance inf", "--tolerance is inf"),
    ("verify plan.json --backend nowhere_to_be_found:Mine", "'nowhere_to_be_found'"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder that commands run in, with one good file of every kind, and some bad ones."""
    folder = tmp_path_factory.mktemp("folder")
    tasks = {"task.yaml": task_of(12, 4), "small.yaml": task_of(5, 2)} | dict.fromkeys(
        ("greedy.json", "1x4-cpu.json"), task_of(12, 4)
    )
    tasks["uneven.yaml"] = sw.Task([sw.Table("t", 10, 8)], sw.Topology(1, 2, "cpu", ["1 GB", "2 GB"]), 64)
    tasks["h100.yaml"] = sw.Task([sw.Table("t", 100, 16)], sw.Topology(1, 2, "h100"), 64)
    for name, task in tasks.items():
        task.save(folder / name)
    save_model(linear_model(), folder / "model.safetensors")
    plan, small, other = (
        sw.plan(tasks[name], strategy=strategy, cost_model=linear_model())
        for name, strategy in (("task.yaml", "greedy"), ("small.yaml", "greedy"), ("task.yaml", "random"))
    )
    for name, made in (("plan.json", plan), ("small.json", small), ("other.json", other)):
        made.save(folder / name)
    save_tables(plan.task.tables, folder / "same.yaml")
    logs = [stats_log(table()), stats_log(table(rows=ROWS[:2]))]
    texts = {
        "broken.json": json.dumps(json.loads((folder / "plan.json").read_text()) | {"shards": []}),
        "blank.json": "",
        "empty.yaml": "groups: []",
        "hello.yaml": "hello\n",
        "tables.yaml": TABLES,
        "train.yaml": "groups: [{file: small.yaml}]",
        "mixed.yaml": "groups: [{file: small.yaml}, {file: h100.yaml}]",
        "measured.json": json.dumps(verified(plan)),
        "torchrec.json": json.dumps(sharding_plan_to_export(plan)),
        "log.csv": "user,item,a name\n1,1 2 3,a\n2,3 2,b\n7,3,c\n",
        "headless.csv": "1,2\n3,4\n",
        "huge.csv": f"user\n{2**62}\n",
        "two.log": "\n".join(logs),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "none.log").write_bytes(b"\xff epoch 1\n" * 100)
    (folder / "two.log.gz").write_bytes(gzip.compress("\n".join(logs).encode()))
    return folder


@pytest.mark.parametrize(("line", "named"), CASES, ids=[line[:60] for line, _ in CASES])
def test_bad_input_is_one_line_that_names_it(cli, folder, monkeypatch, line, named):
    monkeypatch.chdir(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    outcome = cli(*shlex.split(line))
    assert (outcome.code, outcome.out) == (2, "")
    *_, error = outcome.err.splitlines()  # before it, notes on the cost model
    assert error.startswith("error: ")
    assert named in error
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
