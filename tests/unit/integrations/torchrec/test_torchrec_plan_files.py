"""Sharding plans as files, and the loader over them."""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import (
    BoundsCheckMode,
    CacheAlgorithm,
    CacheParams,
    KeyValueParams,
    MultiPassPrefetchConfig,
    ShardingPlan,
)
from torchrec.modules.embedding_configs import DataType

from shardwright.cli.main import main
from shardwright.cost import resolve_cost_model
from shardwright.cost.score import scored
from shardwright.errors import InvalidInput
from shardwright.integrations.torchrec import (
    SavedPlanLoader,
    load_sharding_plan,
    plan_of,
    problem_of,
    save_sharding_plan,
)
from shardwright.sharding.torchrec_files import plan_from_sharding_plan

from .made import SHARDERS, Model, bags, planner, refused, tables_of, topology, with_optimizer

pytestmark = pytest.mark.torchrec

GIVEN = {
    "t0": ParameterConstraints(
        sharding_types=["row_wise"],
        compute_kernels=["fused_uvm_caching"],
        cache_params=CacheParams(
            CacheAlgorithm.LRU, 0.2, 1.0, DataType.FP16, True, multipass_prefetch_config=MultiPassPrefetchConfig(3, 100)
        ),
        enforce_hbm=True,
        stochastic_rounding=False,
        bounds_check_mode=BoundsCheckMode.FATAL,
        output_dtype=DataType.FP16,
    ),
    "t1": ParameterConstraints(sharding_types=["data_parallel"]),
    "t2": ParameterConstraints(sharding_types=["column_wise"], min_partition=8),
}


@pytest.fixture
def made():
    our_planner = planner(topology(4, 2), constraints=GIVEN)
    return our_planner, our_planner.plan(Model(), SHARDERS)


def test_a_plan_comes_back_as_it_was(made, tmp_path):
    _, plan = made
    save_sharding_plan(plan, tmp_path / "plan.json")
    assert load_sharding_plan(tmp_path / "plan.json").plan == plan.plan


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("format",), 9, "format"),
        (("sharding_plan", "pooled", "t0", "sharding_type"), "odd", "unknown sharding_type 'odd'"),
        (("sharding_plan", "pooled", "t0", "shards"), None, "shards is missing"),
        (("sharding_plan", "pooled", "t0", "shards", 0, "placement"), "rank:x/nowhere", "placement"),
        (("sharding_plan", "pooled", "t0", "shards", 0, "sizes"), [1, -2], "shard_sizes"),
        (("sharding_plan", "pooled", "t0", "output_dtype"), "FP7", "got 'FP7'"),
        (("sharding_plan", "pooled", "t0", "cache_params", "algorithm"), "FIFO", "must be one of LRU, LFU, got 'FIFO'"),
        (("sharding_plan", "pooled", "t0", "color"), "red", "color"),
        (("sharding_plan", "pooled", "t0", "key_value_params"), {"l3_cache_size": 1}, "unknown field 'l3_cache_size'"),
        (("sharding_plan", "pooled", "t0", "key_value_params"), {"l2_cache_size": "1"}, r"t0\.key_value_params.*Expected"),
        (("sharding_plan",), [], "sharding_plan"),
        (("sharding_plan", "pooled"), 3, "must map names of tables"),
    ],
)  # fmt: skip
def test_broken_files_are_refused_with_the_field(made, tmp_path, path, value, said):
    file = tmp_path / "plan.json"
    save_sharding_plan(made[1], file)
    document = json.loads(file.read_text())
    *outer, last = path
    place = document
    for key in outer:
        place = place[key]
    place[last] = value
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=said):
        load_sharding_plan(file)


class Reporter:
    """A reporter of a user's own."""


def test_plans_that_a_file_cannot_hold_are_refused(made, tmp_path):
    table = tables_of(made[1])["pooled", "t0"]
    table.key_value_params = KeyValueParams(stats_reporter_config=Reporter())
    with pytest.raises(InvalidInput, match=r"'pooled\.t0': key_value_params hold an object"):
        save_sharding_plan(made[1], tmp_path / "plan.json")
    table.key_value_params, table.cache_params.stats = None, object()
    with pytest.raises(InvalidInput, match="stats is an object"):
        save_sharding_plan(made[1], tmp_path / "plan.json")


def test_a_shard_without_a_placement_is_refused(made, tmp_path):
    tables_of(made[1])["pooled", "t0"].sharding_spec.shards[0].placement = None
    with pytest.raises(InvalidInput, match=r"pooled\.t0: a shard has no placement"):
        save_sharding_plan(made[1], tmp_path / "plan.json")


def saved(made, tmp_path, **hashes):
    our_planner, plan = made
    file = tmp_path / "plan.json"
    save_sharding_plan(plan, file, **hashes or {"context_hash": our_planner.hash_planner_context_inputs_str()})
    return SavedPlanLoader(file)


def test_a_saved_plan_is_taken_in_place_of_a_search(made, tmp_path):
    again = planner(topology(4, 2), constraints=GIVEN, plan_loader=saved(made, tmp_path), strategy="random")
    assert tables_of(again.plan(Model(), SHARDERS)) == tables_of(made[1])
    assert again.last_plan is None


@pytest.mark.parametrize(
    "changed",
    [{"batch_size": 65}, {"constraints": {"t1": GIVEN["t1"]}}, {"where": topology(4, 4)}],
    ids=["batch size", "constraints", "topology"],
)
def test_a_plan_for_other_inputs_is_refused(made, tmp_path, changed):
    fields = {"where": topology(4, 2), "constraints": GIVEN} | changed
    again = planner(plan_loader=saved(made, tmp_path), **fields)
    with refused("PLANNER_INPUT_CONTEXT_MISMATCH", r"plan\.json was made for other inputs"):
        again.plan(Model(), SHARDERS)


def test_without_a_hash_only_the_tables_must_be_the_same(made, tmp_path):
    loader = saved(made, tmp_path, context_hash=None)
    again = planner(topology(4, 2), batch_size=99, constraints=GIVEN, plan_loader=loader)
    assert tables_of(again.plan(Model(), SHARDERS)) == tables_of(made[1])
    other = planner(topology(4, 2), plan_loader=loader)
    with refused("PLAN_LOADING_FAILED", r"it has besides pooled\.t0.*; plan anew|it lacks \.t0"):
        other.plan(bags([(4096, 128)]), SHARDERS)


def test_an_empty_plan_counts_as_none(tmp_path):
    save_sharding_plan(ShardingPlan({}), tmp_path / "empty.json")
    loader = SavedPlanLoader(tmp_path / "empty.json")
    assert loader.load() is None
    our_planner = planner(plan_loader=loader)
    assert len(tables_of(our_planner.plan(Model(), SHARDERS))) == 5
    assert our_planner.last_plan is not None


def their_planner(where, **fields):
    fields = {"stats": [], "storage_reservation": FixedPercentageStorageReservation(0.0), "batch_size": 64} | fields
    return EmbeddingShardingPlanner(where, **fields)


EXCHANGED = {
    "t0": ParameterConstraints(sharding_types=["column_wise"], min_partition=8),
    "t1": ParameterConstraints(sharding_types=["table_wise", "row_wise"]),
    "t2": ParameterConstraints(sharding_types=["row_wise"], cache_params=CacheParams(CacheAlgorithm.LRU)),
}


def test_plans_are_exchanged_with_torchrecs_planner_in_both_directions(tmp_path):
    where, model, file = topology(4, 2), Model(sequence=()), tmp_path / "plan.json"
    planners = (planner(where, constraints=EXCHANGED), their_planner(where, constraints=EXCHANGED))
    plans = [either_planner.plan(model, SHARDERS) for either_planner in planners]
    ours, theirs = (either_planner.hash_planner_context_inputs_str() for either_planner in planners)
    assert ours == theirs
    for plan, make in zip(plans, (their_planner, planner), strict=True):
        save_sharding_plan(plan, file, context_hash=ours)
        loads = make(where, constraints=EXCHANGED, plan_loader=SavedPlanLoader(file, EXCHANGED))
        loaded = tables_of(loads.plan(model, SHARDERS))
        assert {name: table.ranks for name, table in loaded.items()} == {
            name: table.ranks for name, table in tables_of(plan).items()
        }
        assert str(loaded["pooled", "t0"].sharding_spec) == str(tables_of(plan)["pooled", "t0"].sharding_spec)


HASHED = """
import warnings
warnings.simplefilter("ignore")
from tests.unit.integrations.torchrec.made import SHARDERS, Model, planner, topology
from torchrec.distributed.planner.types import ParameterConstraints
given = {"t1": ParameterConstraints(sharding_types=["table_wise", "row_wise"])}
found = planner(topology(4, 2), constraints=given, time_limit=0.1)
found.plan(Model(), SHARDERS)
print(found.hash_planner_context_inputs_str())
"""


@pytest.mark.slow
def test_a_plan_of_a_process_with_another_hash_seed_is_taken(tmp_path):
    """TorchRec lists kernels in the order of a set, so its hash of the same inputs differs between processes."""
    given = {"t1": ParameterConstraints(sharding_types=["table_wise", "row_wise"])}
    own = planner(topology(4, 2), constraints=given, time_limit=0.1)
    plan = own.plan(Model(), SHARDERS)
    hashes = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            cwd=Path(__file__).parents[4],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in (1, 2)
    }
    assert len(hashes) == 2
    for of_plan in hashes:
        save_sharding_plan(plan, tmp_path / "plan.json", context_hash=of_plan)
        loader = SavedPlanLoader(tmp_path / "plan.json")
        again = planner(topology(4, 2), constraints=given, plan_loader=loader)
        assert tables_of(again.plan(Model(), SHARDERS)) == tables_of(plan)


def test_the_search_space_is_listed_only_when_it_is_read(made, monkeypatch):
    listed, enumerate_all = [], EmbeddingEnumerator.enumerate

    def enumerate_and_note(self, module, sharders):
        listed.append(module)
        return enumerate_all(self, module, sharders)

    monkeypatch.setattr(EmbeddingEnumerator, "enumerate", enumerate_and_note)
    where, model = topology(4, 2), Model()
    ours = planner(where, enumerator=EmbeddingEnumerator(where, 64))
    ours.plan(model, SHARDERS)
    assert listed == []
    assert {option.name for option in ours._enumerator.last_stored_search_space} == {"t0", "t1", "t2", "s0", "s1"}
    ours.hash_planner_context_inputs()
    assert listed == [model]


@pytest.mark.slow
def test_hashes_are_equal_for_equal_inputs_and_only_for_those():
    def hash_of(model=None, where=None, **fields):
        our_planner = planner(where or topology(4, 2), **fields)
        with pytest.raises(AssertionError, match="without an enumerator"):  # TorchRec's own
            our_planner.hash_planner_context_inputs()
        our_planner.plan(model or Model(), SHARDERS)
        assert isinstance(our_planner.hash_planner_context_inputs(), int)
        return our_planner.hash_planner_context_inputs_str()

    plain = hash_of()
    assert plain == hash_of() == hash_of(seed=5) == hash_of(strategy="greedy")
    others = [
        hash_of(batch_size=65), hash_of(where=topology(4, 4)), hash_of(where=topology(8, 2)),
        hash_of(where=topology(4, 2, hbm=500 << 30)), hash_of(Model(((4097, 128), (1000, 64), (100_000, 32)))),
        hash_of(constraints=GIVEN), hash_of(constraints={"t1": GIVEN["t1"]}), hash_of(constraints={"t2": GIVEN["t2"]}),
    ]  # fmt: skip
    assert len({plain, *others}) == len(others) + 1


def test_a_saved_plan_is_reviewed_without_torchrec_and_loads_again(tmp_path):
    where, model = topology(4, 2), Model(sequence=())
    storage = FixedPercentageStorageReservation(0.0)
    theirs = EmbeddingShardingPlanner(topology=where, batch_size=64, storage_reservation=storage).plan(model, SHARDERS)
    save_sharding_plan(theirs, tmp_path / "theirs.json")
    problem = problem_of(model, SHARDERS, where, batch_size=64)
    task = replace(problem.task, topology=replace(problem.task.topology, device="h100"))
    task.save(tmp_path / "task.yaml")
    theirs_file, task_file, ours_file = (str(tmp_path / name) for name in ("theirs.json", "task.yaml", "ours.json"))
    assert main(["review", theirs_file, "--task", task_file, "-o", ours_file]) == 0
    document = json.loads((tmp_path / "theirs.json").read_text())
    assert plan_from_sharding_plan(document, task, "theirs").by_table == plan_of(theirs, problem).by_table
    ours = plan_of(load_sharding_plan(tmp_path / "ours.json"), problem)
    ours.check()
    model, plans = (
        resolve_cost_model(None, task),
        [replace(plan, task=task) for plan in (ours, plan_of(theirs, problem))],
    )
    step_ms = [scored(plan, model).cost.step_ms for plan in plans]
    assert step_ms[0] <= step_ms[1] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("kind", "made_for", "loaded_on"),
    [("data_parallel", (4, 4), (8, 4)), ("row_wise", (4, 4), (8, 8)), ("table_row_wise", (4, 2), (8, 4)), ("grid_shard", (4, 2), (8, 4))],
)  # fmt: skip
def test_a_plan_for_fewer_ranks_is_refused(tmp_path, kind, made_for, loaded_on):
    """Replicas and row blocks lie on all ranks, or on all of a host."""
    only = {"t0": ParameterConstraints(sharding_types=[kind])}
    model = bags([(1000, 64)])
    save_sharding_plan(planner(topology(*made_for), constraints=only).plan(model, SHARDERS), tmp_path / "plan.json")
    loading = planner(topology(*loaded_on), constraints=only, plan_loader=SavedPlanLoader(tmp_path / "plan.json"))
    with (
        pytest.warns(UserWarning, match=r"the other \d of 8 ranks hold none"),
        refused("INVALID_RANK_ASSIGNMENT", f"'.t0' is {kind} on ranks"),
    ):
        loading.plan(model, SHARDERS)


def test_ranks_that_a_loaded_plan_leaves_empty_are_reported(tmp_path):
    model, whole = (
        bags([(1000, 64)] * 4),
        {f"t{i}": ParameterConstraints(sharding_types=["table_wise"]) for i in range(4)},
    )
    save_sharding_plan(planner(topology(4), constraints=whole).plan(model, SHARDERS), tmp_path / "plan.json")
    with pytest.warns(
        UserWarning, match=r"plan\.json puts tables on ranks 0 to 3 only, the other 4 of 8 ranks hold none"
    ):
        planner(topology(8), plan_loader=SavedPlanLoader(tmp_path / "plan.json")).plan(model, SHARDERS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        planner(topology(4), plan_loader=SavedPlanLoader(tmp_path / "plan.json")).plan(model, with_optimizer())
