"""The planner as other code reads it: its plan as options, its numbers, statistics, events and annotations."""

import copy
import inspect
import pickle
from contextlib import contextmanager

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.planner import EmbeddingShardingPlanner, planners
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedAbsoluteStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, Stats

from shardwright.errors import InvalidInput
from shardwright.integrations.torchrec import SavedPlanLoader, ShardwrightPlanner, save_sharding_plan
from shardwright.integrations.torchrec.events import SearchPage, SearchStats

from .made import GB, SHARDERS, Model, bags, planner, ranks_of, refused, tables_of, topology

pytestmark = pytest.mark.torchrec

ONLY_WHOLE = {"t0": ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])}


class Kept(Stats):
    """Keeps the fields of its calls."""

    def __init__(self):
        self.told = []

    def log(self, **fields):
        self.told.append(fields)


def offering(*kinds):
    """Sharders of pooled tables that offer some sharding types."""
    return [type("Offering", (type(SHARDERS[0]),), {"sharding_types": lambda *_: list(kinds)})()]


def test_the_best_plan_is_kept_as_options_in_the_order_of_the_tables():
    ours = planner()
    assert (ours._best_plan, ours._num_proposals, ours._num_plans) == (None, 0, 0)
    assert (ours.get_selected_options(), ours.get_search_space()) == ([], None)
    plan = ours.plan(Model(), SHARDERS)
    assert (ours._num_proposals, ours._num_plans) == (1, 1)
    assert [(option.path, option.name) for option in ours._best_plan] == list(tables_of(plan))
    assert ours.get_selected_options() == ours._best_plan
    assert {option.name for option in ours.get_search_space()} == {option.name for option in ours._best_plan}
    for option in ours._best_plan:
        assert [shard.rank for shard in option.shards] == ranks_of(tables_of(plan)[option.path, option.name])


def test_a_failure_leaves_no_plan_and_a_loaded_plan_no_proposals(tmp_path):
    our_planner = planner(topology(2, hbm=GB), constraints=ONLY_WHOLE)
    plan = our_planner.plan(bags([(1000, 128)]), SHARDERS)
    with pytest.raises(PlannerError):
        our_planner.plan(bags([(3_000_000, 128)]), SHARDERS)
    assert (our_planner._best_plan, our_planner._num_proposals, our_planner._num_plans) == (None, 1, 0)
    save_sharding_plan(plan, tmp_path / "plan.json")
    loads = planner(topology(2, hbm=GB), plan_loader=SavedPlanLoader(tmp_path / "plan.json"))
    loads.plan(bags([(1000, 128)]), SHARDERS)
    assert (loads._num_proposals, loads._num_plans) == (0, 0)
    assert [option.name for option in loads._best_plan] == ["t0"]


def test_statistics_get_bound_and_gap():
    kept = Kept()
    our_planner = planner(stats=kept)
    our_planner.plan(Model(), SHARDERS)
    ours, told = our_planner.last_plan, kept.told[0]["debug_stats"]
    assert isinstance(told, SearchStats)
    assert (told.step_ms, told.bound_ms, told.gap) == (ours.cost.step_ms, ours.bound_ms, ours.gap)
    assert kept.told[0]["best_plan"] == our_planner._best_plan


def test_torchrecs_page_shows_bound_and_gap_below_the_proposals():
    our_planner = planner(stats=None)
    page = our_planner._stats[0]
    assert isinstance(page, EmbeddingStats)
    our_planner.plan(Model(), SHARDERS)
    assert "Evaluated 1 proposal(s), found 1 possible plan(s)" in page._stats_table[2]
    assert f"bound {our_planner.last_plan.bound_ms:.3f} ms, gap {our_planner.last_plan.gap:.1%}" in page._stats_table[3]
    assert len(page._stats_table[3]) == len(page._stats_table[2])


def test_statistics_are_logged_without_a_plan():
    kept, page = Kept(), SearchPage()
    our_planner = planner(topology(2, hbm=GB), constraints=ONLY_WHOLE, stats=[kept, page])
    with pytest.raises(PlannerError):
        our_planner.plan(bags([(3_000_000, 128), (10, 8)]), SHARDERS)
    (told,) = kept.told
    assert (told["num_plans"], told["sharding_plan"].plan) == (0, {})
    assert {(o.name, o.sharding_type, tuple(s.rank for s in o.shards)) for o in told["best_plan"]} == {
        ("t0", "table_wise", (-1,)),
        ("t1", "table_wise", (-1,)),
    }
    text = "\n".join(page._stats_table)
    assert "found 0 possible plan(s)" in text
    assert "t0" in text
    assert "gap" not in text


def test_an_error_for_want_of_storage_states_the_reserved_share():
    reservation = FixedAbsoluteStorageReservation.from_gb(0.5)
    our_planner = planner(topology(2, hbm=GB), constraints=ONLY_WHOLE, storage_reservation=reservation)
    with refused("INSUFFICIENT_STORAGE", r"FixedAbsoluteStorageReservation: 0\.5 GB per device"):
        our_planner.plan(bags([(10_000_000, 128)]), SHARDERS)


def test_torchrecs_event_handlers_hear_of_plans_and_failures(monkeypatch):
    heard = []
    for name in ("log_planner_config", "log_planning_result", "log_table_assignment", "log_storage_reservation"):
        monkeypatch.setattr(planners, name, lambda *values, _name=name, **fields: heard.append((_name, values, fields)))
    our_planner = planner(topology(2, hbm=GB), constraints=ONLY_WHOLE)
    our_planner.plan(bags([(1000, 128)]), SHARDERS)
    told = {name: (values, fields) for name, values, fields in heard}
    assert told["log_planning_result"][1]["success"] == "True"
    assert told["log_planning_result"][1]["planner_type"] == "ShardwrightPlanner"
    assert told["log_table_assignment"][0][0] == our_planner._best_plan
    assert told["log_storage_reservation"][1]["available_hbm_per_rank"] == GB
    heard.clear()
    with pytest.raises(PlannerError):
        our_planner.plan(bags([(3_000_000, 128)]), SHARDERS)
    assert heard[-1][0] == "log_planning_result"
    assert heard[-1][2]["success"] == "False"
    assert heard[-1][2]["error_type"] == "STRICT_CONSTRAINTS"


def test_torchrecs_event_log_wraps_planning(monkeypatch):
    seen = []

    @contextmanager
    def context(component, event_name, **_):
        seen.append((component, event_name))
        yield

    monkeypatch.setattr(planners.EventLoggingHandler, "log_event_context", context)
    planner().plan(Model(), SHARDERS)
    assert seen[0] == ("planner", "ShardwrightPlanner.plan")


@pytest.mark.parametrize("method", ["__init__", "plan", "collective_plan"])
def test_annotations_and_defaults_are_torchrecs(method):
    theirs, ours = (inspect.signature(getattr(cls, method)) for cls in (EmbeddingShardingPlanner, ShardwrightPlanner))
    for name, parameter in theirs.parameters.items():
        assert ours.parameters[name].annotation == parameter.annotation, name
        assert ours.parameters[name].default == parameter.default, name
    assert list(ours.parameters)[: len(theirs.parameters)] == list(theirs.parameters)
    assert ours.return_annotation == theirs.return_annotation


@pytest.mark.parametrize("world", [(1, 1), (4, 4), (8, 4)])
def test_sharders_that_offer_columns_on_one_host_alone_need_no_constraint(world):
    our_planner = planner(topology(*world))
    tables = tables_of(our_planner.plan(bags([(10_000, 256), (500, 64)]), offering("table_column_wise")))
    assert {table.sharding_type for table in tables.values()} == {"table_column_wise"}
    hosts = {name: {rank // world[1] for rank in ranks_of(table)} for name, table in tables.items()}
    assert all(len(of_table) == 1 for of_table in hosts.values())


def test_grids_are_planned_unasked():
    """TorchRec's planner makes them only if constraints ask for them."""
    plan = planner(topology(8, 4)).plan(bags([(10_000, 256), (500, 64)]), offering("grid_shard"))
    assert {table.sharding_type for table in tables_of(plan).values()} == {"grid_shard"}


def test_dense_kernels_run_replicas_only():
    model, sharders = bags([(1000, 64)]), offering("table_wise", "data_parallel")
    type(sharders[0]).compute_kernels = lambda *_: ["dense"]
    (table,) = tables_of(planner().plan(model, sharders)).values()
    assert (table.sharding_type, table.compute_kernel) == ("data_parallel", "dense")
    demanded = {"t0": ParameterConstraints(sharding_types=["table_wise"])}
    with refused("INVALID_COMPUTE_KERNEL"):
        planner(constraints=demanded).plan(model, sharders)


def test_planners_are_copied_and_sent_to_processes():
    our_planner = planner()
    plan = our_planner.plan(Model(), SHARDERS)
    for copied in (copy.deepcopy(our_planner), pickle.loads(pickle.dumps(planner()))):
        assert set(tables_of(copied.plan(Model(), SHARDERS))) == set(tables_of(plan))
        assert copied.hash_planner_context_inputs() == our_planner.hash_planner_context_inputs()


@pytest.mark.parametrize("returned", [None, 5, [None]])
def test_a_callback_that_returns_no_options_is_refused(returned):
    def lost(options):
        return returned

    with refused("OTHER", "the callback .*lost returned a .*, must return the list of sharding options"):
        planner(callbacks=[lost]).plan(Model(), SHARDERS)


@pytest.mark.parametrize("profiles", [5, [5], {"t0": None}])
def test_profiles_that_are_no_tables_are_refused(profiles):
    with pytest.raises(InvalidInput, match="profiles hold .*, must be shardwright.Tables"):
        planner(profiles=profiles).plan(Model(), SHARDERS)
