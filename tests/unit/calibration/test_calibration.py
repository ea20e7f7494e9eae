"""Calibrations of a machine whose times come from a hidden formula."""

import fcntl
import platform
from dataclasses import replace

import numpy as np
import pytest

import shardwright.calibration.calibration as calibration
from shardwright import calibrate, tune
from shardwright.calibration import links
from shardwright.calibration.calibration import _published
from shardwright.calibration.curriculum import Curriculum
from shardwright.calibration.visits import Observed
from shardwright.cost import PublishedModel, cost_model_for, device_ms, resolve_cost_model
from shardwright.cost.choice import user_models
from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure import campaign
from shardwright.measure.sampling import Breadth, SampleSpace
from shardwright.modelling.adapting import error_of
from shardwright.modelling.dataset import samples_of_works
from shardwright.task import Topology
from shardwright.task.link_files import Cluster
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of
from shardwright.workload.generators import table_pool
from tests.unit.calibration.conftest import FakeVisitor

TIMES = ("forward_ms", "backward_ms")
TASK = replace(task_of(12, 2), batch_size=256, topology=Topology(devices_per_host=2, memory="1 GB"))


@pytest.mark.slow
def test_the_error_falls_until_the_aim_and_planning_takes_the_model(cache_folder, visitor, brief_training):
    errors = []
    calibrated = calibrate(
        TASK, minutes=3, aim=0.3, visitor=visitor, progress=lambda _, __, error, ___: errors.append(error)
    )
    known = [error for error in dict.fromkeys(errors) if error is not None]
    assert calibrated.stopped == "aim"
    assert known[-1] <= 0.3
    assert calibrated.accuracy.mean_error < calibrated.before  # of the bundled model, which is of a real machine
    assert calibrated.path.exists()
    assert resolve_cost_model(None, TASK).name == calibrated.model.name
    (kept,) = user_models()
    assert kept.metadata["optimizer"] == TASK.optimizer
    assert kept.metadata["batch_sizes"] == "256"
    assert len(kept.metadata["controls"].split(",")) == 3


def test_a_burst_at_the_start_does_not_scale_what_is_measured(visitor):
    """The first visits found a machine twice as slow, whose forward follows the state fully and whose backward hardly does."""
    space = SampleSpace(table_pool("dlrm-2021"), 0, 1 << 30, Breadth(batch_sizes=(256,)))
    sets = [space.draw(number) for number in range(8)]
    observed = Observed(visitor, batch_size=256)
    follows = (1.0, 0.3)
    for place, job in enumerate(sets):
        visit = visitor.visit(job.work)
        state = 2.0 if place < 3 else 1.0
        times = {name: getattr(visit, name) * state**power for name, power in zip(TIMES, follows, strict=True)}
        burst = replace(visit, usual_ms=state, elasticity=follows, **times)
        visitor.visit = lambda work, burst=burst: burst
        observed.visit_sets([job])
        del visitor.visit
    expected = [device_ms(SimpleCostModel(), job.work.works) for job in sets]
    np.testing.assert_allclose(observed.samples().times, expected, rtol=0.05)


def test_heavy_tables_come_first_and_once_however_slow_they_are():
    """Quick sets leave out the table that fills a device, and a step waits for the slowest device."""
    hot = replace(TASK.tables[0], name="hot", pooling=500.0)
    task = replace(TASK, tables=[*TASK.tables, hot])
    for method, models in (("first_sets", None), ("next_sets", [cost_model_for("cpu")] * 2)):
        curriculum = Curriculum(task, 256, "rowwise_adagrad", 1 << 30, "cpu", first=40)
        first, later = (getattr(curriculum, method)(8, models) for _ in range(2))
        alone = [job.work for (job,) in first[:2]]
        hot_place = len(task.tables) - 1
        assert [(work.seeds, [part.dim for part in work.works]) for work in alone] == [
            ((hot_place,), [hot.dim]),
            ((hot_place,), [hot.dim // 2]),
        ]
        assert alone[0] not in [job.work for group in later for job in group]


@pytest.mark.slow
def test_ctrl_c_keeps_what_there_is_and_the_next_calibration_goes_on(cache_folder, brief_training):
    """Earlier sets count with the same batch size and optimizer only; those measured later are others."""
    first = calibrate(minutes=3, visitor=FakeVisitor(interrupt_at=20))
    second = calibrate(minutes=3, aim=0.001, visitor=FakeVisitor(interrupt_at=24))
    assert first.stopped == second.stopped == "interrupted"
    assert first.model is None
    assert second.sets == first.sets + second.new_sets
    assert user_models()[0].name == second.model.name
    assert second.path.exists()
    assert second.accuracy.sets == second.sets
    other = calibrate(TASK, minutes=3, visitor=FakeVisitor(interrupt_at=5))
    assert other.sets == other.new_sets < 5


class Slower(FakeVisitor):
    """A machine that takes twice the default model's times; each visit advances its clock by two seconds."""

    now = 0.0

    def visit(self, work):
        self.now += 2.0
        forward, backward = device_ms(cost_model_for("cpu"), work.works)
        return replace(super().visit(work), forward_ms=2 * forward, backward_ms=2 * backward, spent={"runs": 2.0})


def test_too_few_sets_for_a_model_of_its_own_scale_the_default_one(cache_folder):
    calibrated = calibrate(minutes=3, visitor=Slower(interrupt_at=20))
    assert calibrated.recipe == "scaled"
    assert calibrated.accuracy.sets == calibrated.sets < 30
    assert calibrated.accuracy.mean_error < calibrated.before
    assert "measured and kept, and a model of its own needs 30" in calibrated.notes[0]
    assert "--minutes" in calibrated.notes[0]
    (kept,) = user_models()
    assert kept.name == calibrated.model.name


def test_fewer_sets_make_no_model_and_are_kept(cache_folder):
    calibrated = calibrate(minutes=3, visitor=FakeVisitor(interrupt_at=6))
    assert (calibrated.model, calibrated.sets) == (None, 3)
    assert "3 sets" in calibrated.notes[0]
    assert not user_models()


@pytest.mark.parametrize(("seconds", "told"), [(40.0, "they scale the default model"), (20.0, "too few to learn from")])
def test_a_time_limit_is_kept_after_a_note_on_what_fits(cache_folder, monkeypatch, seconds, told):
    """30 sets would take a minute."""
    visitor = Slower()
    for module in (calibration, campaign):
        monkeypatch.setattr(module, "monotonic", lambda: visitor.now)
    if told.startswith("too few"):
        monkeypatch.setattr(calibration, "FEWEST_SCALING", 12)
    with pytest.warns(
        UserWarning,
        match=rf"can be measured in {seconds:.0f} s: {told}.*needs 30 sets, and about --minutes [12]",
    ):
        calibrated = calibrate(minutes=seconds / 60, visitor=visitor)
    assert visitor.now <= seconds
    assert calibrated.stopped == "time"
    assert len(visitor.works) >= seconds / 2 - 4  # the time was used
    assert (calibrated.model is None) == told.startswith("too few")


def test_a_limit_in_which_nothing_can_be_measured_is_refused_before_any_work(cache_folder):
    for command in (calibrate, lambda **options: tune(TASK, **options)):
        with pytest.raises(InvalidInput, match=r"give at least --minutes 0\.2"):
            command(minutes=0.05)
    assert not cache_folder.exists()


@pytest.mark.slow
def test_sets_that_the_backend_fails_on_are_left_out(cache_folder, brief_training):
    visitor = FakeVisitor(fails=lambda number: number > 5 and number % 5 == 0, interrupt_at=60)
    calibrated = calibrate(minutes=3, aim=0.001, visitor=visitor)
    assert calibrated.failed
    assert calibrated.path.exists()
    with pytest.raises(MeasurementFailed, match="10 sets in a row"):
        calibrate(minutes=3, visitor=FakeVisitor(fails=lambda number: number > 2))


def test_two_at_once_are_refused(cache_folder, visitor):
    cache_folder.mkdir()
    with (cache_folder / f"calibrating-{platform.node()}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InvalidInput, match="another calibration or tuning is running"):
            calibrate(visitor=visitor)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"minutes": 0}, "minutes is 0"),
        ({"minutes": -1}, "minutes is -1"),
        ({"minutes": True}, "minutes is True"),
        ({"minutes": float("nan")}, "minutes is nan"),
        ({"aim": 0}, "aim is 0"),
        ({"device": "abacus"}, "device is 'abacus'"),
        ({"task": replace(TASK, topology=Topology.preset("h100-8")), "device": "cpu"}, "the task is for h100"),
    ],
)
def test_bad_options_are_refused(cache_folder, visitor, options, said):
    with pytest.raises(InvalidInput, match=said):
        calibrate(visitor=visitor, **options)
    assert not visitor.works


def measured_links(visitor):
    links._measured(visitor.visits, Cluster("cpu", 1, 2, "gloo", "2"), 1.0, None, None, None)


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (lambda visitor: calibrate(visitor=visitor), "."),
        (lambda visitor: tune(TASK, visitor=visitor), "tuning"),
        (measured_links, "links"),
    ],
)
def test_an_unwritable_cache_folder_raises_before_measuring(cache_folder, visitor, command, file):
    path = cache_folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("a file")
    with pytest.raises(InvalidInput, match="SHARDWRIGHT_CACHE"):
        command(visitor)
    assert not visitor.works


def test_a_task_that_does_not_fit_is_measured_with_fewer_rows(cache_folder):
    large = replace(TASK, tables=[table.scaled_rows(1e5) for table in TASK.tables])
    visitor = FakeVisitor(interrupt_at=20)
    calibrated = calibrate(large, minutes=3, visitor=visitor)
    assert any("of their rows" in note for note in calibrated.notes)
    assert max(work.table_bytes for work in visitor.works) < 2**31


@pytest.mark.slow
def test_a_gpus_calibration_starts_from_what_is_published_of_it(monkeypatch):
    monkeypatch.setattr(calibration, "_LESSONS", 200)
    monkeypatch.setattr(calibration, "_THOROUGH", 1.0)
    curriculum = Curriculum(None, 65_536, "rowwise_adagrad", 8 << 30, "h100")
    start = _published("h100", "rowwise_adagrad", curriculum, (50 << 20, 100 << 20))
    space = SampleSpace(table_pool("dlrm-2021"), 1, 8 << 30, Breadth(batch_sizes=(65_536,)))
    sets = [space.draw(number).work.works for number in range(60)]
    published = np.array([device_ms(PublishedModel("h100"), works) for works in sets])
    assert error_of(start, samples_of_works(sets, published)) < 0.05
