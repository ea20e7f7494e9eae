"""`shardwright calibrate` and `shardwright models`, without kernels."""

from datetime import UTC, datetime

import pytest

import shardwright as sw
from shardwright.calibration import calibration
from shardwright.cli.checks import differences
from shardwright.errors import InvalidInput
from shardwright.modelling import adapting
from shardwright.modelling.links import links_path
from shardwright.task import Links, LinkSpeed
from shardwright.task.link_files import Cluster, LinkErrors, MeasuredLinks
from tests.unit.calibration.conftest import FakeVisitor

pytestmark = pytest.mark.usefixtures("cache_folder")


@pytest.fixture
def fake_kernels(monkeypatch):
    """Kernels whose times follow a formula, until Ctrl-C is pressed at the 36th; models train briefly."""
    visitor = FakeVisitor(interrupt_at=36)
    monkeypatch.setattr(calibration.Measurer, "visit", lambda _, work: visitor.visit(work))
    for name in ("_UPDATES", "_FINE_UPDATES"):
        monkeypatch.setattr(adapting, name, 30)


@pytest.mark.slow
def test_sets_measured_until_ctrl_c_make_a_model_that_is_listed_shown_and_removed(cli, fake_kernels, cache_folder):
    outcome = cli("calibrate", "--json")
    assert outcome.code == 130
    assert "run the same command again to go on" in outcome.err
    (file,) = (cache_folder / "models").iterdir()
    listed = cli("models", "--json").document["models"]
    (mine,) = [model for model in listed if not model["bundled"]]
    assert mine["file"] == str(file)
    assert "calibrated on this machine" in mine["origin"]
    assert mine["name"] in cli("models").out
    assert "batch_sizes" in cli("models", "show", mine["name"]).out
    assert cli("models", "remove", mine["name"]).code == 0
    assert not file.exists()


@pytest.mark.parametrize(
    ("device", "options", "minutes"),
    [
        ("cpu", (), 3),
        ("h200", (), 8),
        ("h200", ("--device", "cpu"), 3),
        ("cpu", ("--device", "cuda"), 8),
        ("h200", ("--minutes", 5), 5),
        ("h200", ("--minutes", 0), 0),
    ],
)
def test_the_progress_line_is_full_when_the_time_is_over(cli, tmp_path, monkeypatch, device, options, minutes):
    totals = []

    def calibrate(task, **options):
        raise InvalidInput("enough")

    monkeypatch.setattr("shardwright.calibration.calibrate", calibrate)
    monkeypatch.setattr("shardwright.cli.calibrate.progress_of", lambda report, total: totals.append(total))
    sw.Task([sw.Table("t", 100, 16)], sw.Topology(device=device), 64).save(tmp_path / "task.yaml")
    assert cli("calibrate", tmp_path / "task.yaml", *options).code == 2
    assert totals == [60 * minutes]


@pytest.fixture
def fake_links(monkeypatch):
    """Links of hosts of two CPUs, measured at once; records how they are asked for."""
    calls = {}

    def calibrate_links(**options):
        calls.update(options)
        cluster = Cluster("cpu", 2, 2, "gloo", "2.13.0")
        speeds = {"all_to_all": (LinkSpeed(0.25, 2e9, alone=3e9), LinkSpeed(1.5, 1e8))}
        errors = {"all_to_all": {"intra": LinkErrors(0.1, 0.05), "inter": LinkErrors(0.2, None)}}
        measured = MeasuredLinks(cluster, Links(**speeds), errors, datetime.now(UTC).isoformat())
        path = links_path("cpu", 2, 2)
        path.parent.mkdir(parents=True, exist_ok=True)
        measured.save(path)
        return measured, path

    monkeypatch.setattr("shardwright.calibration.links.calibrate_links", calibrate_links)
    return calls


def test_links_are_shown_and_plans_take_them_with_a_note(cli, fake_links, tmp_path):
    outcome = cli("calibrate", "--links", "--devices", 4, "--minutes", 2)
    assert outcome.code == 0
    assert (fake_links["devices"], fake_links["device"], fake_links["seconds"]) == (4, "cpu", 120)
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert "all_to_all, inside a host 250.0 – 2 3 10.0% 5.0%" in lines
    assert any(line.startswith("all_to_all, between hosts 1500.0 – 0.1 – 20.0%") for line in lines)
    assert "plans for 2 × 2 cpu take them by themselves" in outcome.out
    document = cli("calibrate", "--links", "--json").document
    assert document["links"]["all_to_all"]["inter"] == {"latency_ms": 1.5, "bandwidth": 1e8}

    def plan(name, topology):
        sw.Task([sw.Table("t", 1000, 16)], topology, 64).save(tmp_path / "task.yaml")
        outcome = cli("plan", tmp_path / "task.yaml", "-o", tmp_path / name, "--strategy", "greedy")
        assert outcome.code == 0
        return outcome.err, sw.Plan.load(tmp_path / name).task.topology.links

    text, links = plan("own.json", sw.Topology(2, 2))
    assert links.all_to_all[1] == LinkSpeed(1.5, 1e8)
    assert "links of 2 × 2 cpu: measured just now, mean error 15.0% on sizes held out" in text
    assert not list(differences(sw.Plan.load(tmp_path / "own.json").task, sw.Task.load(tmp_path / "task.yaml")))
    compared = cli("compare", tmp_path / "task.yaml", "--strategies", "greedy", "--json").document["strategies"]
    assert compared[0]["step_ms"] == cli("show", tmp_path / "own.json", "--json").document["step_ms"]
    scaled = cli("scale", tmp_path / "task.yaml", "--hosts", "1,2", "--time-limit", 0.1)
    assert "links of 2 × 2 cpu were measured, but every cluster is priced by the topology's own" in scaled.err
    for topology in (sw.Topology(2, 2, links=Links()), sw.Topology(1, 2)):
        text, links = plan("other.json", topology)
        assert not links or links == Links()
        assert "links of" not in text


def test_links_that_are_known_leave_nothing_to_assume(cli, tmp_path):
    (tmp_path / "task.yaml").write_text(
        "{batch_size: 64, topology: {devices_per_host: 2, device: abacus}, tables: [{name: t, rows: 1000, dim: 16}]}"
    )
    assert "warning: topology: no preset has 'abacus' devices" in cli("plan", tmp_path / "task.yaml").err
    path = links_path("abacus", 1, 2)
    path.parent.mkdir(parents=True)
    MeasuredLinks(Cluster("abacus", 1, 2, "nccl", "2"), Links(all_to_all=(LinkSpeed(1, 1e9), None)), {}, "").save(path)
    text = cli("plan", tmp_path / "task.yaml").err
    assert "no preset" not in text
    assert "links of 1 × 2 abacus: measured at an unknown time with torch 2 (here " in text


def test_under_torchrun_the_ranks_are_its_own(cli, monkeypatch):
    variables = {
        "RANK": 0,
        "WORLD_SIZE": 4,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": "h",
        "MASTER_PORT": 1,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    outcome = cli("calibrate", "--links", "--devices", "2")
    assert outcome.code == 2
    assert "devices is 2, torchrun started 4 ranks; leave it out under torchrun" in outcome.err
