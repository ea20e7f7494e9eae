"""`shardwright calibrate` and `shardwright models`, without kernels."""

import pytest

import shardwright as sw
from shardwright.calibration import calibration
from shardwright.cost import cost_model_for
from shardwright.errors import InvalidInput
from tests.unit.calibration.conftest import FakeVisitor

pytestmark = pytest.mark.usefixtures("cache_folder")


@pytest.fixture
def fake_kernels(monkeypatch):
    """Kernels that take what a formula says, until Ctrl-C is pressed at the 36th."""
    visitor = FakeVisitor(interrupt_at=36)
    monkeypatch.setattr(calibration.Measurer, "visit", lambda _, work: visitor.visit(work))


@pytest.mark.slow
def test_what_was_measured_until_ctrl_c_is_a_model_that_is_listed_shown_and_removed(cli, fake_kernels, cache_folder):
    outcome = cli("calibrate", "--json")
    assert outcome.code == 130
    assert "run the same command again to go on" in outcome.err
    (file,) = (cache_folder / "models").iterdir()
    listed = cli("models", "--json").document["models"]
    (mine,) = [one for one in listed if not one["bundled"]]
    assert mine["file"] == str(file)
    assert "calibrated on this machine" in mine["origin"]
    assert mine["name"] in cli("models").out
    assert "batch_sizes" in cli("models", "show", mine["name"]).out
    assert cli("models", "remove", mine["name"]).code == 0
    assert not file.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("calibrate", "--minutes", "0"), "minutes is 0"),
        (("calibrate", "--aim", "2"), "aim is 2"),
        (("calibrate", "--device", "abacus"), "device is 'abacus'"),
        (("calibrate", "nope.yaml"), "nope.yaml: there is no such task file"),
        (("models", "burn"), "action is 'burn'"),
        (("models", "show"), "needs the name"),
        (("models", "show", "nobody"), "there is no model 'nobody'"),
        (("models", "remove", cost_model_for("cpu").name), "comes with the package"),
        (("models", "list", "x"), "list takes no name"),
    ],
)
def test_bad_usage(cli, arguments, said):
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert said in outcome.err


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


def test_a_device_that_is_not_there(cli):
    assert cli("calibrate", "--device", "cuda").code in (1, 2)
