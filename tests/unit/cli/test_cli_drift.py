"""Two weeks of made-up drift, of a click log and of a log of films watched, and the exit code that a scheduler reads."""

import numpy as np
import pytest

import shardwright as sw
from shardwright.cli.main import main
from shardwright.cost import save_model
from tests.unit.cli.models import linear_model

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DAYS = (0, 1, 5, 13)
COLUMNS = ("ad", "page", "user", "campaign")


def click_log(path, day):
    """A day of clicks, in which ads are looked up more each day: lists of ads that grow, over fewer and fewer hot ones."""
    rng = np.random.default_rng(day)
    samples = 400
    table = {name: rng.zipf(1.3, samples) % 3000 for name in COLUMNS[1:]}
    table["ad"] = [(rng.zipf(1.2 + day / 20, 2 + 4 * day) % 3000).tolist() for _ in range(samples)]
    pq.write_table(pa.table(table), path)


def film_log(path, day):
    """A day of films watched, a `user item` event a line; users watch more of fewer films each day."""
    rng = np.random.default_rng(day)
    users = rng.integers(0, 100, 600 * (1 + day))
    films = rng.zipf(1.2 + day / 20, users.size) % 2000
    path.write_text("".join(f"{user} {film}\n" for user, film in zip(users, films, strict=True)))


@pytest.fixture(scope="module", params=[(click_log, ".parquet"), (film_log, ".txt")], ids=["clicks", "films"])
def fortnight(request, tmp_path_factory):
    """A plan for the first day, and the logs of some days of two weeks."""
    write, ending = request.param
    folder = tmp_path_factory.mktemp("fortnight")
    files = [folder / f"day{day:02}{ending}" for day in DAYS]
    for file, day in zip(files, DAYS, strict=True):
        write(file, day)
    save_model(linear_model(), folder / "model.safetensors")
    main(["profile", str(files[0]), "-o", str(folder / "tables.yaml")])
    (folder / "task.yaml").write_text(
        "batch_size: 256\ntopology: {devices_per_host: 4, device: cpu, memory: 1 GB, intra_latency_ms: 0.0}\ntables: {file: tables.yaml}\n"
    )
    plan, model = folder / "plan.json", folder / "model.safetensors"
    sw.plan(sw.Task.load(folder / "task.yaml"), cost_model=str(model)).save(plan)
    return plan, files, ("--model", model, "--time-limit", 0.5)


def test_a_scheduler_sees_the_day_from_which_on_a_new_plan_is_worth_it(cli, fortnight, tmp_path):
    plan, files, options = fortnight
    first = cli("drift", plan, files[0], *options, "--json")
    assert first.code == 0
    assert first.document["now_ms"] == pytest.approx(first.document["before_ms"], rel=1e-6)
    runs = [cli("drift", plan, file, *options, "--worth-it", 0.01, "--json") for file in files[1:]]
    gains = [run.document["gain"] for run in runs]
    assert all(run.code == (3 if run.document["worth_it"] else 0) for run in runs)
    assert gains[-1] == max(gains)
    assert [run.code for run in runs] == ([0, 0, 3] if files[0].suffix == ".parquet" else [0, 0, 0])
    now = [run.document["now_ms"] for run in runs]
    assert now == sorted(now)


def test_people_read_what_changed_and_what_it_costs(cli, fortnight, tmp_path):
    plan, files, options = fortnight
    outcome = cli("drift", plan, files[-1], *options, "-o", tmp_path / "next.json")
    assert "lookups of a sample" in outcome.out
    assert f"{plan} took" in outcome.out
    assert ("worth it" in outcome.out.splitlines()[-2]) == (outcome.code == 3)
    later = sw.Plan.load(tmp_path / "next.json")
    assert later.task.topology == sw.Plan.load(plan).task.topology


def test_a_file_of_tables_will_do(cli, fortnight, tmp_path):
    plan, _, options = fortnight
    tables, later = plan.with_name("tables.yaml"), tmp_path / "LATER.YAML"
    later.write_text(tables.read_text())
    for file in (tables, later):
        assert cli("drift", plan, file, *options).code == 0
