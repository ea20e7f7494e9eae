"""A solution must always agree with the plain definition: the score of the shards it stands for, and the oracle's price of its arrays."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright._engine import Problem, Solution, Stop
from shardwright.cost import score
from shardwright.cost.blocks import Added
from shardwright.cost.choice import cost_model_for
from shardwright.cost.collectives import LinkFacts
from shardwright.cost.model import PricingHead
from shardwright.cost.score import traffic
from shardwright.search.engine.catalog import NO_HOME, EngineArrays, SpreadArrays
from shardwright.search.engine.session import Start, start
from shardwright.task import DenseTime, Exchange, Table, Task, Topology
from shardwright.testing.tasks import conformance_tasks, task_of
from tests.oracles.engine import all_changes, times_of, waits_of
from tests.unit.search.engine.searches import MODEL, placed, session_of

TASKS = conformance_tasks()
CALLS, HIDDEN, ITEMS, DEVICES = 3, 11, 8, 4


def assert_agrees(prepared, solution, rel=1e-9):
    cost = score(prepared.task, prepared.shards(solution), MODEL)
    solution.refresh()
    assert solution.used.tolist() == [device.memory_bytes for device in cost.devices]
    phases = np.array(
        [[d.forward_ms, d.forward_communication_ms, d.backward_communication_ms, d.backward_ms] for d in cost.devices]
    )
    phases[:, 1:3] -= traffic(
        prepared.task, prepared.shards(solution)
    ).waits  # every device's: the search adds them to the step
    np.testing.assert_allclose(solution.times, phases, rtol=rel, atol=1e-12)
    np.testing.assert_allclose(times_of(prepared.assembly.arrays, solution), phases, rtol=rel, atol=1e-12)
    assert solution.step_ms() == pytest.approx(cost.step_ms, rel=rel)
    waits = waits_of(prepared.assembly.arrays, solution)
    assert solution.step_ms() == pytest.approx(solution.times.max(axis=0).sum() + waits, rel=rel)


def assert_counted(prepared, solution):
    """Every piece is found where it lies, and the counts hold."""
    item_of = prepared.assembly.arrays.item[solution.form]
    assert np.bincount(item_of, minlength=solution.pieces_of.size).tolist() == solution.pieces_of.tolist()
    for piece, device in enumerate(solution.device.tolist()):
        width = solution.width[(item_of == item_of[piece]) & (solution.device == device)].sum()
        assert solution.width_on(int(item_of[piece]), device) == width
        assert solution.device[solution.piece_on(int(item_of[piece]), device)] == device


@pytest.mark.parametrize("what", TASKS)
@pytest.mark.parametrize("spreading", [1.0, np.inf])
def test_a_solution_costs_what_its_shards_cost(what, spreading):
    prepared, _ = session_of(TASKS[what])
    solution = placed(prepared, np.inf, spreading)
    assert_counted(prepared, solution)
    assert_agrees(prepared, solution)


@pytest.mark.parametrize("hidden", [DenseTime(0.1, 0.0, 0.0), DenseTime(0.0, 0.1, 0.05), DenseTime(0.02, 0.03, 1e6)])
@pytest.mark.parametrize("hosts", [1, 2])
def test_dense_layers_hide_in_the_search_what_they_hide_in_the_score(hosts, hidden):
    task = task_of(14, 4 // hosts, hosts=hosts)
    slow = Topology(
        hosts, 4 // hosts, "cpu", "4 GB", 1e9, 3e8, 0.0, 0.0
    )  # latencies are the one thing that the search simplifies
    task = replace(task, topology=slow, exchange=Exchange(pipeline="sparse_dist", dense_ms=hidden))
    prepared, _ = session_of(task)
    solution = placed(prepared)
    assert_agrees(prepared, solution)
    bare, _ = session_of(replace(task, exchange=Exchange(pipeline="sparse_dist")))
    assert solution.step_ms() < score(bare.task, prepared.shards(solution), MODEL).step_ms
    solution.improve(Stop())
    assert_counted(prepared, solution)


@pytest.mark.parametrize("what", TASKS)
def test_improving_keeps_the_account(what):
    prepared, _ = session_of(TASKS[what])
    solution = placed(prepared)
    before = solution.step_ms()
    solution.improve(Stop())
    assert_counted(prepared, solution)
    value = solution.value()
    assert value <= before * 1.01
    cost = score(prepared.task, prepared.shards(solution), MODEL)
    assert (solution.used >= [device.memory_bytes for device in cost.devices]).all()
    assert value == pytest.approx(
        cost.step_ms, rel=2e-2
    )  # row blocks may be a row shorter than the search takes them for


@pytest.mark.parametrize("seed", range(4))
def test_sums_kept_incrementally_equal_sums_made_anew(seed):
    """After a few hundred random transfers and trades a solution agrees with its shards, priced from nothing."""
    prepared, _ = session_of(task_of(20, 3, hosts=2))
    arrays, rng = prepared.assembly.arrays, np.random.default_rng(seed)
    first = placed(prepared)
    solution, before = first.copy(), (first.device.tolist(), first.times.tolist())
    for _ in range(300):
        piece, other, target = int(rng.integers(solution.live)), int(rng.integers(solution.live)), int(rng.integers(6))
        form, width = int(solution.form[piece]), int(solution.width[piece])
        if target == solution.device[piece]:
            item, others = int(arrays.item[form]), int(arrays.item[solution.form[other]])
            alone = solution.pieces_of[item] == solution.pieces_of[others] == 1
            if item != others and solution.device[other] != target and alone:
                solution.swap(piece, other)
        elif form < arrays.most.size:  # column blocks: their nominal sizes are exact
            solution.transfer(piece, form, int(rng.integers(1, width + 1)), target)
    assert_counted(prepared, solution)
    assert_agrees(prepared, solution, rel=1e-6)
    assert (first.device.tolist(), first.times.tolist()) == before  # copies are independent


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_change_gains_what_was_promised(hosts):
    prepared, _ = session_of(task_of(30, 4 // hosts, hosts=hosts))
    solution, made = placed(prepared), 0
    for _ in range(20):
        solution.set_objective(5)
        one, target = int(np.argmax(solution.objective)), int(np.argmin(solution.times.sum(axis=1)))
        gain, piece, form, units = solution.best_transfer(one, target, 1e-9, True)
        promised, mine, theirs = solution.best_swap(one, target, gain)
        before = solution.objective.sum()
        if mine >= 0:
            solution.swap(mine, theirs)
            gain = promised
        elif piece >= 0:
            solution.transfer(piece, form, units, target)
        else:
            break
        made += 1
        assert before - solution.objective.sum() == pytest.approx(gain, rel=1e-6, abs=1e-9)
    assert made > 2


def test_the_best_change_is_the_best_of_all():
    compared = 0
    for tables in (14, 16, 18, 20):
        prepared, _ = session_of(task_of(tables, 3))
        arrays, solution = prepared.assembly.arrays, placed(prepared)
        solution.set_objective(4)
        for source, target in ((0, 1), (1, 2), (2, 0)):
            before = solution.objective.sum()
            best = max(
                (before - after.objective.sum() for after in all_changes(arrays, solution, source, target)), default=0.0
            )
            moved = solution.best_transfer(source, target, 1e-9, False)[0]
            swapped = solution.best_swap(source, target, moved)[0]
            apart = solution.times[source].sum() > solution.times[target].sum()
            assert swapped <= max(best, 1e-9) * (1 + 1e-6)
            if apart and best > 1e-9:  # from the busier device; a trade is tried where the dearer piece leaves it
                assert moved > 1e-9 or swapped > 1e-9
                compared += 1
    assert compared


def test_pieces_come_and_go():
    prepared, _ = session_of(task_of(8, 2))
    solution = placed(prepared)
    for piece in (5, 0, 3):
        form, width, device = (int(of[piece]) for of in (solution.form, solution.width, solution.device))
        item = int(prepared.assembly.arrays.item[form])
        solution.lift(piece)
        solution.drop(piece)
        assert_counted(prepared, solution)
        assert solution.piece_on(item, device) == -1
        solution.place(solution.add(form, width), device)
        assert_counted(prepared, solution)
    solution.join()
    assert_agrees(prepared, solution)


def test_a_seed_gives_one_search_and_another_another():
    prepared, _ = session_of(task_of(30, 4))
    first = placed(prepared)
    kicked = []
    for seed in ([1, 2], [1, 2], [1, 3]):
        solution = first.copy()
        best, ms = solution.kicks(first.value(), 5, True, seed, Stop())
        assert solution.value() == ms
        assert best is None or best.value() <= first.value()
        kicked.append((ms, solution.device.tolist()))
    assert kicked[0] == kicked[1] != kicked[2]


def random_arrays(rng, gates: int = 0) -> EngineArrays:
    """A problem of items that are never cut, each of up to three parts."""
    groups = [rng.choice(20, rng.integers(1, 4), replace=False) for _ in range(ITEMS)]
    vectors, mix, base = rng.normal(0, 1, (20, HIDDEN + 2)), rng.random((2, HIDDEN)), rng.normal(0, 1, HIDDEN + 2)
    gated, mixed = slice(HIDDEN - 3 * gates, HIDDEN), HIDDEN - 3 * gates
    vectors[:, gated], mix[:, gated], base[gated] = rng.random((20, 3 * gates)), 0.0, 0.0
    vectors[:, mixed:HIDDEN:3] = rng.integers(0, 2, (20, gates))  # shards that open the gate
    added = Added.of_groups(rng.integers(0, CALLS, 20), vectors, groups)
    none, items = np.zeros(0, dtype=np.int64), np.arange(ITEMS)
    return EngineArrays(
        first=np.arange(ITEMS + 1), item=items, next_form=items, equal=np.zeros(ITEMS, dtype=bool),
        added=added, bytes=rng.integers(1, 9, ITEMS), served=rng.random((ITEMS, 2)) * 1e6,
        legal=np.ones(ITEMS, dtype=bool), price=rng.random(ITEMS), sets=rng.integers(0, 4, ITEMS), set_ms=rng.random(2),
        most=np.ones(ITEMS, dtype=np.int64), allowed=np.zeros((0, 0), dtype=bool), rivals=np.zeros((0, 0), dtype=bool),
        spreads=SpreadArrays(np.zeros(ITEMS + 1, dtype=np.int64), none.reshape(0, 2), none,
            Added.of(none, np.zeros((0, HIDDEN + 2))), none, np.zeros((0, 3)), np.zeros((0, 2)), none),
        head=PricingHead(mix, gates, base, rng.random(2)), memory=np.full(DEVICES, 50),
        links=LinkFacts(DEVICES, 2, np.array([1e-7, 1e-6]), np.array([1e-7, 2e-6]), np.array([2, 20, 1, 40]) / 1e7,
            rng.choice([0.0, 0.5], 3)),
    )  # fmt: skip


@given(
    st.integers(0, 2**31),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, ITEMS - 1), st.integers(0, DEVICES - 1)), max_size=20),
)
@settings(max_examples=100, deadline=None)
def test_calls_are_priced_as_if_anew_and_an_empty_device_is_as_new(seed, gates, moves):
    arrays = random_arrays(np.random.default_rng(seed), gates)
    problem = Problem(arrays, NO_HOME)
    solution = Solution(problem)
    for item in range(ITEMS):
        solution.place(solution.add(item, 1), item % DEVICES)
    solution.refresh()
    for item, device in moves:
        (piece,) = np.flatnonzero(solution.form == item).tolist()
        if solution.device[piece] != device:
            solution.transfer(piece, item, 1, device)
    np.testing.assert_allclose(solution.times, times_of(arrays, solution), rtol=1e-9, atol=1e-12)
    for item in range(ITEMS):
        solution.clear(item)
    solution.refresh()
    np.testing.assert_array_equal(solution.times[:, [0, 3]], np.tile(arrays.head.once, (DEVICES, 1)))


def devices_with_the_widest(prepared, solution):
    shards = prepared.shards(solution)
    widest = max(table.dim for table in prepared.task.tables)
    return len({device for shard in shards if shard.dim >= widest for device in shard.devices})


def mixed_dims(tables=60, devices=8):
    dims = [8, 16, 64, 128]
    rows = [
        Table(f"t{number}", 100_000 + 7_919 * number, dims[number % 4], 5.0 + number % 7) for number in range(tables)
    ]
    return Task(rows, Topology(1, devices, "h100", "40 GB"), 65_536)


def test_wide_pieces_placed_together_make_a_shorter_step():
    task = mixed_dims()
    prepared, _ = session_of(task, cost_model_for("h100"))
    apart, together = (start(prepared, Start(np.inf, spreading=np.inf, together=each))[0] for each in (False, True))
    few, many = (devices_with_the_widest(prepared, solution) for solution in (together, apart))
    assert few < many == 8
    assert_counted(prepared, together)
    together.refresh()
    apart.refresh()
    assert together.step_ms() < apart.step_ms()


@pytest.mark.parametrize("seed", range(3))
def test_kicks_of_tables_of_several_widths_keep_the_account(seed):
    task = mixed_dims(24, 4)
    model = cost_model_for("h100")
    prepared, _ = session_of(task, model)
    solution = placed(prepared)
    before = solution.value()
    best, ms = solution.kicks(before, 40, False, [seed], Stop())
    assert best is not None
    assert ms == best.value() < before
    assert_counted(prepared, best)
    cost = score(task, prepared.shards(best), model)
    assert best.used.tolist() == [device.memory_bytes for device in cost.devices]
    assert ms == pytest.approx(cost.step_ms, rel=2e-2)


BAD = {
    "added.vectors has NaN": lambda a: {"added": a.added._replace(vectors=a.added.vectors * np.nan)},
    "bytes has -": lambda a: {"bytes": -a.bytes},
    "served has -": lambda a: {"served": -a.served},
    "price has NaN": lambda a: {"price": a.price * np.nan},
    r"legal must be a contiguous numpy array of bool with shape \(8, \), is int64 with shape \(8,\)":
        lambda a: {"legal": a.legal.astype(np.int64)},
    r"head.base must be a contiguous numpy array of float64 with shape \(5, \), is float64 with shape \(13,\)":
        lambda a: {"head": a.head._replace(mix=np.ascontiguousarray(a.head.mix[:, :3]))},
    "added.vectors must be a contiguous": lambda a: {"added": a.added._replace(vectors=np.asfortranarray(a.added.vectors))},
    "served must be a contiguous": lambda a: {"served": a.served.tolist()},
    r"memory must be .* \(at least 1, \), is int64 with shape \(0,\)": lambda _: {"memory": np.zeros(0, dtype=np.int64)},
    r"most must be .* \(at least 1, \), is int64 with shape \(0,\)": lambda _: {"most": np.zeros(0, dtype=np.int64)},
    "added.call has -1": lambda a: {"added": a.added._replace(call=a.added.call * 0 - 1)},
    "item has 8": lambda a: {"item": a.item + 1},
    "next_form has 9": lambda a: {"next_form": a.next_form * 0 + 9},
    "first must": lambda a: {"first": a.first[::-1].copy()},
    "added.part must": lambda a: {"added": a.added._replace(part=a.added.part * 0)},
    "sets has 64": lambda a: {"sets": np.full(ITEMS, 64)},
    "links must name the devices": lambda a: {"links": a.links._replace(devices=DEVICES + 1)},
    "links must be finite": lambda a: {"links": a.links._replace(hidden=a.links.hidden - 1)},
    "gates must be a whole number of at least 0 and at most 3": lambda a: {"head": a.head._replace(gates=4)},
    "head.gates must be a number": lambda a: {"head": a.head._replace(gates=None)},
    "head.once is missing": lambda a: {"head": SimpleNamespace(mix=a.head.mix, gates=0, base=a.head.base)},
}  # fmt: skip


@pytest.mark.parametrize("says", BAD)
def test_bad_arrays_are_reported(says):
    arrays = random_arrays(np.random.default_rng(0))
    with pytest.raises(ValueError, match=says):
        Problem(arrays._replace(**BAD[says](arrays)), NO_HOME)


def test_a_plan_to_start_from_has_a_number_for_each_item():
    home = NO_HOME._replace(first=np.zeros(ITEMS + 1, dtype=np.int64))
    with pytest.raises(ValueError, match="form, unit_ms and spread_ms of home must"):
        Problem(random_arrays(np.random.default_rng(0)), home)


def test_bad_calls_are_told():
    solution = Solution(Problem(random_arrays(np.random.default_rng(0)), NO_HOME))
    solution.add(0, 1)
    for call, error, says in (
        (lambda: solution.add(99, 1), IndexError, "form is 99, must be at least 0 and below 8"),
        (lambda: solution.add(0, 2), IndexError, "width - 1 is 1"),
        (lambda: solution.place(0, 4), IndexError, "device is 4"),
        (lambda: solution.place(1, 0), IndexError, "piece is 1"),
        (lambda: solution.lift(0), ValueError, "lies nowhere"),
        (lambda: solution.take_spread(0, 0), ValueError, "none of this item's"),
        (lambda: solution.improve(Stop()), ValueError, "place every piece first"),
        (lambda: solution.kicks(1.0, 1, False, [1], Stop()), ValueError, "place every piece first"),
    ):
        with pytest.raises(error, match=says):
            call()
    solution.place(0, 0)
    with pytest.raises(ValueError, match="lies on a device already"):
        solution.place(0, 1)
    with pytest.raises(ValueError, match="item 1 has neither pieces nor a spread"):
        solution.value()


def test_arrays_and_problem_live_as_long_as_a_solution_needs_them():
    arrays = random_arrays(np.random.default_rng(1))
    expected = Solution(Problem(arrays, NO_HOME))
    solution = Solution(
        Problem(random_arrays(np.random.default_rng(1)), NO_HOME)
    )  # its arrays and problem are gone after this line
    for one in (expected, solution):
        for item in range(ITEMS):
            one.place(one.add(item, 1), item % DEVICES)
        one.improve(Stop())
    assert solution.times.tolist() == expected.times.tolist()


def test_a_search_that_is_stopped_ends():
    prepared, _ = session_of(task_of(40, 4))
    solution, stop = placed(prepared), Stop()
    stop.set()
    before = solution.device.tolist()
    solution.improve(stop)
    assert solution.kicks(solution.value(), 1000, False, [1], stop)[0] is None
    assert solution.device.tolist() == before
    assert Stop(0.0).late
    assert not Stop(60.0).late
