"""No plan is cheaper than the bound: random plans, searched plans, every plan of tiny tasks."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright.cost import PublishedModel, score
from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.features import WIDTHS
from shardwright.cost.model import CostModel, Pricing
from shardwright.cost.score import device_ms
from shardwright.errors import InfeasibleTask
from shardwright.search.bound import BoundProof, lower_bound
from shardwright.search.certified import Certified
from shardwright.search.engine.catalog import make_catalog
from shardwright.search.holders import Count, Holders
from shardwright.search.width_classes import WidthClasses
from shardwright.sharding import Shard, shard_work
from shardwright.sharding.ways import free_grid_counts, grid_counts, row_units
from shardwright.task import Task
from shardwright.testing.model import SimpleCostModel
from tests.strategies import tasks
from tests.wide import wide_model

MODEL, WIDE_MODEL = SimpleCostModel(), wide_model()


def adversarial_model(seed: int) -> SimpleCostModel:
    """A convex head with many kinks, some units falling in the sums, and a small constant."""
    rng = np.random.default_rng(seed)
    head = Pricing(
        hidden=rng.normal(0, 1, (12, 3)),
        hidden_bias=rng.normal(0, 0.5, 12),
        mix=rng.random((2, 12)),
        linear=np.abs(rng.normal(1, 0.5, (2, 3))),
        bias=rng.random(2) * 0.01,
    )

    class Adversarial(SimpleCostModel):
        pricing = head

    return Adversarial()


def falling_model(seed: int) -> SimpleCostModel:
    """A convex head whose time falls with some of the sums, so that the kernels of some plans have a negative price."""
    rng = np.random.default_rng([seed, 1])
    head = Pricing(
        hidden=rng.normal(0, 1, (4, 3)),
        hidden_bias=rng.normal(0, 0.5, 4),
        mix=rng.random((2, 4)),
        linear=rng.normal(0, 0.3, (2, 3)),
        bias=rng.random(2) * 5,
    )

    class Falling(SimpleCostModel):
        pricing = head

    return Falling()


def model_of(seed: int) -> CostModel:
    """The plain model, one with many kinks, one whose time falls with some of the sums, or one of a GPU, with gates."""
    if seed == 1:
        return WIDE_MODEL
    return MODEL if seed == 0 else adversarial_model(seed) if seed < 6 else falling_model(seed)


@st.composite
def cut(draw, task: Task, table: sw.Table) -> list[Shard]:
    """One of the ways that the bound covers: whole, column blocks, equal row blocks, grids, replicas."""
    devices, near = task.topology.devices, task.topology.devices_per_host
    rank = st.integers(0, devices - 1)
    ways = ["whole"]
    ways += ["columns"] if table.dim % 4 == 0 and table.dim > 4 else []
    ways += ["rows"] if min(devices, table.rows) > 1 else []
    counts = grid_counts(table, sw.TableConstraint(), task.topology)
    ways += ["grid"] if counts else []
    free_counts = free_grid_counts(table, sw.TableConstraint()) if devices > 1 else []
    ways += ["free grid"] if free_counts else []
    ways += ["replicas"] if devices > 1 else []
    way = draw(st.sampled_from(ways))
    if way == "whole":
        return [Shard.whole(table, draw(rank))]
    if way == "replicas":
        return [Shard.whole(table, *range(devices))]
    if way == "grid":
        width = table.dim // (count := draw(st.sampled_from(counts)))
        hosts = [draw(st.integers(0, task.topology.hosts - 1)) for _ in range(count)]
        rows = list(itertools.pairwise(i * table.rows // near for i in range(near + 1)))
        return [
            Shard(table.name, part, (place * width, (place + 1) * width), (host * near + local,))
            for place, host in enumerate(hosts)
            for local, part in enumerate(rows)
        ]
    if way == "free grid":
        width = table.dim // (count := draw(st.sampled_from(free_counts)))
        blocks = []
        for place in range(count):
            units = row_units(table.rows)
            inner = draw(st.sets(st.integers(1, units - 1), max_size=min(devices, units) - 1))
            edges = [0, *(table.rows * unit // units for unit in sorted(inner)), table.rows]
            ranks = draw(st.permutations(range(devices)))
            columns = (place * width, (place + 1) * width)
            blocks += [
                Shard(table.name, part, columns, (on,))
                for part, on in zip(itertools.pairwise(edges), ranks, strict=False)
            ]
        return blocks
    if way == "columns":
        inner = draw(st.sets(st.integers(1, table.dim // 4 - 1), min_size=1))
        edges = [0, *(4 * c for c in sorted(inner)), table.dim]
        return [Shard(table.name, (0, table.rows), pair, (draw(rank),)) for pair in itertools.pairwise(edges)]
    count = 2 ** draw(st.integers(1, min(devices, table.rows).bit_length() - 1))
    edges = [i * table.rows // count for i in range(count + 1)]
    return [Shard(table.name, pair, (0, table.dim), (i,)) for i, pair in enumerate(itertools.pairwise(edges))]


@st.composite
def plans_of(draw, task: Task) -> list[Shard]:
    return [shard for table in task.tables for shard in draw(cut(task, table))]


@st.composite
def tasks_in_units(draw, **options) -> Task:
    """Tasks whose columns are whole units, as the bound covers them."""
    task = draw(tasks(max_tables=5, **options))
    return replace(task, tables=[replace(t, dim=max(4, t.dim // 4 * 4)) for t in task.tables])


@given(st.data(), st.integers(0, 11))
@settings(max_examples=60)
def test_no_random_plan_is_cheaper(data, seed):
    task = data.draw(tasks_in_units())
    model = model_of(seed)
    bound = lower_bound(task, model)
    shards = data.draw(plans_of(task))
    assert score(task, shards, model).step_ms >= bound.ms * (1 - 1e-9)


@given(st.data(), st.integers(0, 5))
@settings(max_examples=30)
def test_no_random_cut_into_wide_columns_is_cheaper(data, seed):
    """One table that is cut into blocks of at least so many columns, of any widths: none is below the bound, or declared infeasible."""
    dim, least = 4 * data.draw(st.integers(3, 24)), data.draw(st.integers(1, 40))
    table = sw.Table("t", rows=10_000, dim=dim, pooling=data.draw(st.sampled_from([1.0, 20.0])))
    limits = {"t": sw.TableConstraint(("column_wise",), min_columns=least)}
    task = Task([table], sw.Topology(devices_per_host=3), 512, constraints=sw.Constraints(limits))
    narrow = -(-least // 4)  # units of 4 columns
    first = data.draw(st.integers(narrow, max(narrow, dim // 4 - narrow)))
    if first + narrow > dim // 4:
        with pytest.raises(InfeasibleTask):
            sw.plan(task, cost_model=MODEL)
        return
    model = MODEL if seed == 0 else adversarial_model(seed)
    ranks = data.draw(st.permutations(range(3)))
    blocks = [
        Shard("t", (0, 10_000), pair, (rank,))
        for pair, rank in zip([(0, 4 * first), (4 * first, dim)], ranks, strict=False)
    ]
    sw.Plan(task, blocks).check()
    plan = sw.plan(task, cost_model=model)
    assert plan.bound_ms * (1 - 1e-9) <= min(plan.cost.step_ms, score(task, blocks, model).step_ms)


@given(tasks(), st.integers(0, 3))
@settings(max_examples=10)
def test_no_searched_plan_is_cheaper(task, seed):
    model = MODEL if seed == 0 else adversarial_model(seed)
    bound = lower_bound(task, model)
    for strategy in ("greedy", Certified(patience=2)):
        plan = sw.plan(task, strategy=strategy, cost_model=model, runs_on=None)
        assert plan.cost.step_ms >= bound.ms * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_all_whole_table_plans_lies_between_bound_and_certified(seed):
    """Five tables that may not be cut, three devices: all 243 plans priced."""
    tables = [sw.Table(f"t{i}", 1000 + 300 * i, 4 * (1 + i + seed), 3.0 + i) for i in range(5)]
    limits = {t.name: sw.TableConstraint(sharding_types=("table_wise",)) for t in tables}
    task = Task(tables, sw.Topology(devices_per_host=3), 512, constraints=sw.Constraints(limits))
    best = min(
        score(task, [Shard.whole(t, d) for t, d in zip(tables, devices, strict=True)], MODEL).step_ms
        for devices in itertools.product(range(3), repeat=5)
    )
    plan = sw.plan(task, strategy="certified", cost_model=MODEL)
    assert plan.bound_ms <= best * (1 + 1e-9)
    assert plan.cost.step_ms == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_row_blocks_over_pinned_devices_are_not_cheaper(seed):
    """Three pinned devices of eight: a number of blocks that is no power of two, and rows that do not divide evenly."""
    model = adversarial_model(seed)
    limits = sw.TableConstraint(sharding_types=("row_wise",), devices=(1, 4, 6))
    table = sw.Table("t", rows=10 + seed, dim=8, pooling=20.0)
    task = Task([table], sw.Topology(devices_per_host=8), 512, constraints=sw.Constraints({"t": limits}))
    plan = sw.plan(task, strategy="certified", cost_model=model)
    assert [shard.devices for shard in plan.shards] == [(1,), (4,), (6,)]
    assert plan.cost.step_ms >= plan.bound_ms * (1 - 1e-9)


@given(st.data(), st.integers(0, 5))
@settings(max_examples=20)
def test_no_random_plan_is_cheaper_than_the_tightened_bound(data, seed):
    """Given a known plan, any random plan costs at least as much as that plan or as the tightened bound."""
    task = data.draw(tasks_in_units())
    model = MODEL if seed == 0 else adversarial_model(seed)
    proof = BoundProof(make_catalog(task, model), model)
    known, other = (score(task, data.draw(plans_of(task)), model).step_ms for _ in range(2))
    tightened = proof.tightened(proof.solve(), known)
    counted = proof.refined(tightened, known, lambda: False)
    assert tightened.ms <= counted.ms <= known
    assert other >= counted.ms * (1 - 1e-9)


@given(st.data(), st.integers(0, 11))
@settings(max_examples=60)
def test_no_random_plan_is_cheaper_than_its_numbers_of_holders_prove(data, seed):
    """For any weights of the holders' mean: for each table, and a range with as many holders as the plan gives it."""
    task = data.draw(tasks_in_units())
    model, devices = model_of(seed), task.topology.devices
    proof = BoundProof(make_catalog(task, model), model)
    holders = Holders(proof._relaxation, model.pricing, proof.solve().prices)
    shards = data.draw(plans_of(task))
    step_ms = score(task, shards, model).step_ms
    for index, table in enumerate(task.tables):
        own = [shard for shard in shards if shard.table == table.name]
        count = len({device for shard in own for device in shard.devices})
        weights = np.array([data.draw(st.floats(0, 1)) for _ in range(4)]) if count < devices else np.ones(4)
        fewest, most = data.draw(st.integers(1, count)), data.draw(st.integers(count, max(count, devices - 1)))
        counts = Count(fewest, most) if count < devices else Count(devices, devices)
        own_call = proof._relaxation.copied & (holders.spreads.table == index)  # not where a replica serves all samples
        copied = devices > 1 and len(own[0].devices) == devices and bool(own_call.any())
        proven, _ = holders.value(holders.of_table(index), counts, weights, absent=copied)
        all_copied = all(
            len(shard.devices) == devices for shard in shards
        )  # pays no latency; such plans are priced apart
        assert step_ms >= proven * (1 - 1e-9) or all_copied


@st.composite
def wide_tasks(draw):
    """Tasks of pooled tables of up to 160 columns, with costly lookups."""
    task = draw(tasks_in_units(max_dim=160))
    tables = [replace(t, pooled=True) for t in task.tables]
    return replace(task, tables=[replace(t, pooling=1000 * t.pooling) for t in tables])


@given(st.data())
@settings(max_examples=60)
def test_no_random_plan_is_cheaper_than_the_gates_that_it_opens_prove(data):
    """For each gate of the call of pooled tables, and a range with as many devices as open it in the plan."""
    task = data.draw(wide_tasks())
    tables = task.tables
    devices = task.topology.devices
    proof = BoundProof(make_catalog(task, WIDE_MODEL), WIDE_MODEL)
    holders, forms = (
        Holders(proof._relaxation, WIDE_MODEL.pricing, proof.solve().prices),
        proof._relaxation.catalog.forms,
    )
    shards = data.draw(plans_of(task))
    if all(len(shard.devices) == devices for shard in shards):
        return  # priced apart
    step_ms = score(task, shards, WIDE_MODEL).step_ms
    for held in holders.of_gates():
        if not held.pieces.any():
            continue
        width = max(wide for wide in WIDTHS if wide < forms.pieces.dim[held.pieces].min())
        call = forms.costs.call[held.pieces][0]
        calls = {
            task.tables[table].name: forms.costs.call[forms.pieces.table == table][0] for table in range(len(tables))
        }
        opening = [one for one in shards if one.dim > width and calls[one.table] == call]
        copied = [one for one in opening if len(one.devices) == devices > 1]
        if copied and proof._relaxation.copied.any():
            continue  # replicas are in a call of their own
        count = len({device for shard in opening for device in shard.devices})
        weights = np.array([data.draw(st.floats(0, 1)) for _ in range(4)]) if 0 < count < devices else np.ones(4)
        fewest, most = data.draw(st.integers(1, max(1, count))), data.draw(st.integers(count, max(count, devices - 1)))
        counts = Count(fewest, most) if 0 < count < devices else Count(devices, devices)
        proven, _ = holders.value(held, counts, weights, absent=count == 0)
        assert step_ms >= proven * (1 - 1e-9)


@given(st.data())
@settings(max_examples=100)
def test_no_random_plan_is_cheaper_than_its_devices_by_class_of_widths_prove(data):
    """For any weights of the classes' means, for the classes that the plan's devices are in."""
    task = data.draw(wide_tasks())
    devices = task.topology.devices
    proof = BoundProof(make_catalog(task, WIDE_MODEL), WIDE_MODEL)
    classes = WidthClasses(Holders(proof._relaxation, WIDE_MODEL.pricing, proof.solve().prices))
    shards = data.draw(plans_of(task))
    of_replicas = bool(proof._relaxation.copied.any())  # those on all devices have a call of their own
    together = [shard for shard in shards if not (of_replicas and len(shard.devices) == devices > 1)]
    replicated = all(len(shard.devices) == devices for shard in shards)
    if replicated or len(set(proof._relaxation.catalog.forms.costs.call.tolist())) > 1:
        return  # priced apart, or in several calls
    of_device = [0] * devices
    for shard in together:
        for device in shard.devices:
            of_device[device] = max(of_device[device], sum(width < shard.dim for width in WIDTHS))
    if max(of_device) >= classes.classes:
        return  # a block that fits no device
    counts = tuple(of_device.count(each) for each in range(classes.classes))
    drawn = np.array([[data.draw(st.floats(0.01, 1)) * (count > 0) for _ in range(4)] for count in counts])
    proven = classes.value(counts, drawn / drawn.sum(axis=0))[0]
    assert score(task, shards, WIDE_MODEL).step_ms >= proven * (1 - 1e-9)


def test_classes_of_widths_raise_the_bound_of_gates():
    """Narrow and wide tables that no device can hold apart: each gate alone costs little, all of them together more."""
    tables = [sw.Table(f"t{i}", rows=200_000 + i, dim=(16, 48, 96, 192)[i % 4], pooling=8.0 + i % 5) for i in range(24)]
    task = Task(tables, sw.Topology(devices_per_host=4, device="h100", memory="20 GB"), 32_768)
    model = resolve_cost_model(None, task)
    step_ms = sw.plan(task, strategy="greedy", cost_model=model).cost.step_ms
    proof = BoundProof(make_catalog(task, model), model)
    plain = proof.tightened(proof.solve(), step_ms)
    holders = Holders(proof._relaxation, model.pricing, plain.prices)
    of_gates = holders.bound([], step_ms, plain.ms, lambda: False)
    of_classes = WidthClasses(holders).bound(step_ms, plain.ms, lambda: False)
    assert plain.ms < of_gates < of_classes <= step_ms
    assert WidthClasses(holders).bound(step_ms, plain.ms, lambda: True) == 0.0


def ways_of(table: sw.Table, devices: int) -> list[list[Shard]]:
    """Whole on each device, replicated on all, and in equal row blocks over any two devices, or all."""
    ranks = range(devices)
    groups = [*itertools.combinations(ranks, 2), tuple(ranks)] if devices > 2 else [tuple(ranks)]
    blocks = [
        [
            Shard(
                table.name, (i * table.rows // len(group), (i + 1) * table.rows // len(group)), (0, table.dim), (rank,)
            )
            for i, rank in enumerate(group)
        ]
        for group in groups
    ]
    return [[Shard.whole(table, rank)] for rank in ranks] + [[Shard.whole(table, *ranks)]] + blocks


@pytest.mark.parametrize("seed", range(10))
def test_the_best_of_all_plans_is_not_below_the_count_of_holders(seed):
    """Three or four tables, whole, replicated or in rows: all plans priced. Ids count for as much as values, and replicas pay at times."""
    rng = np.random.default_rng([seed, 9])
    devices = int(rng.integers(2, 4))
    tables = [
        sw.Table(
            f"t{i}",
            1200 * int(rng.choice([1, 900])),
            4 * int(rng.integers(1, 17)),
            float(rng.choice([1.0, 20.0, 150.0])),
        )
        for i in range(6 - devices)
    ]
    kinds = ("table_wise", "data_parallel", "row_wise")
    limits = sw.Constraints({table.name: sw.TableConstraint(sharding_types=kinds) for table in tables})
    speed = float(rng.choice([3e9, 3e10, 4e11]))
    topology = sw.Topology(devices_per_host=devices, intra_bandwidth=speed, memory="80 GB")
    model = PublishedModel("h100") if seed % 3 else model_of(seed // 3 % 12)
    task = Task(tables, topology, 65_536 if seed % 3 else 512, constraints=limits)
    best = min(
        score(task, [shard for way in lying for shard in way], model).step_ms
        for lying in itertools.product(*(ways_of(table, devices) for table in tables))
    )
    proof = BoundProof(make_catalog(task, model), model)
    for known in (best * (1 + 1e-9), best * 1.05, best * 2):
        counted = proof.refined(proof.tightened(proof.solve(), known), known, lambda: False)
        assert counted.ms <= best * (1 + 1e-8)


def test_a_table_that_takes_a_device_is_counted_by_its_holders():
    """A hot table on several devices costs more than the mean device sees: the bound comes closer to the plan, and stays below it."""
    hot = sw.Table("hot", rows=2_000_000, dim=128, pooling=150.0)
    others = [sw.Table(f"t{i}", rows=300_000, dim=32, pooling=10.0 + i) for i in range(24)]
    task = Task([hot, *others], sw.Topology.preset("h100-8"), 65_536)
    model = PublishedModel("h100")
    plan = sw.plan(task, strategy="certified", cost_model=model)
    proof = BoundProof(make_catalog(task, model), model)
    plain = proof.tightened(proof.solve(), plan.cost.step_ms)
    counted = proof.refined(plain, plan.cost.step_ms, lambda: False)
    assert plain.ms * 1.01 < counted.ms <= plan.cost.step_ms
    assert counted.by == "holders" != plain.by
    assert proof.refined(plain, plan.cost.step_ms, lambda: True).ms == plain.ms


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("pooling", [1.0, 200.0])
@pytest.mark.parametrize("kind", ["row_wise", "data_parallel"])
def test_parts_on_many_devices_are_charged_for_their_links_and_no_more(kind, pooling, hosts):
    """A table on all devices, a tiny one, slow links: even the bound tightened by a far longer step is close to the plan."""
    tables = [sw.Table("t", rows=60_000, dim=64, pooling=pooling), sw.Table("tiny", rows=10, dim=4)]
    limits = sw.Constraints(
        {"t": sw.TableConstraint(sharding_types=(kind,)), "tiny": sw.TableConstraint(sharding_types=("table_wise",))}
    )
    topology = sw.Topology(
        hosts,
        4 // hosts,
        "h100",
        "80 GB",
        intra_bandwidth="1 GB/s" if hosts == 1 else "4 GB/s",
        inter_bandwidth="1 GB/s",
    )
    task = Task(tables, topology, 8192, constraints=limits)
    model = PublishedModel("h100")
    step_ms = sw.plan(task, strategy="certified", cost_model=model).cost.step_ms
    proof = BoundProof(make_catalog(task, model), model)
    tightened = proof.tightened(proof.solve(), 100 * step_ms)
    assert 0.7 * step_ms < tightened.ms <= step_ms * (1 + 1e-9)
    assert tightened.by == ("prices" if tightened.ms == proof.solve().ms else "pieces")


def test_a_device_pays_for_the_call_of_replicas_and_for_its_own():
    """The fixed cost of both calls is in the bound, beside the mean device's share of the kernels and the links' latency."""
    whole = sw.Table("whole", rows=4_000_000, dim=64, pooling=1.0)
    small = [sw.Table(f"small{i}", rows=100, dim=64, pooling=20.0) for i in range(8)]
    limits = {"whole": sw.TableConstraint(sharding_types=("table_wise",))}
    limits |= {table.name: sw.TableConstraint(sharding_types=("data_parallel",)) for table in small}
    topology = sw.Topology.preset("h100-8", devices_per_host=2)
    task = Task([whole, *small], topology, 65_536, constraints=sw.Constraints(limits))
    model = PublishedModel("h100")
    plan = [Shard.whole(whole, 0), *(Shard.whole(table, 0, 1) for table in small)]
    launches = float(model.pricing.bias.sum())
    of_whole, *of_small = (sum(device_ms(model, [shard_work(task, shard)])) - launches for shard in plan)
    least = 2 * (launches + topology.intra_latency_ms) + of_whole / 2 + sum(of_small)
    assert lower_bound(task, model).ms >= least - 1e-9
    assert lower_bound(task, model).ms <= score(task, plan, model).step_ms
