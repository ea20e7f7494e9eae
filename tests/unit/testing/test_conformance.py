"""The conformance suite must catch strategies that break a rule: each fault is planted in an otherwise good strategy."""

from dataclasses import dataclass, replace

import pytest

from shardwright.errors import InfeasibleTask
from shardwright.search.baselines import KINDS
from shardwright.search.registry import strategy_named, strategy_names
from shardwright.sharding import Shard, memory_account
from shardwright.sharding.plan import Plan
from shardwright.task import TableConstraint, Task
from shardwright.testing import check_strategy

SHORT = {
    **{name: {"patience": 0, "tolerance": 0.05} for name in ("auto", "certified")},
    "dreamshard+": {"patience": 1},
    "exact": {"units_per_table": 1, "max_nodes": 1, "tolerance": 0.9},
}
"""Options of strategies that search long, so that they end sooner."""
SLOW = (*SHORT, "flexshard", "two_tiers")
NAMES = {*strategy_names(), *SHORT, *KINDS, "hugectr", "hugectr_hier", "two_tiers"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sorted(NAMES)]
)
def test_every_registered_strategy_conforms(name):
    check_strategy(replace(strategy_named(name), **SHORT.get(name, {})))


@dataclass(frozen=True)
class Faulty:
    """Greedy with a fault planted by `spoil`."""

    spoil: object
    name: str = "faulty"

    def supports(self, task):
        return None

    def search(self, task, cost_model, *, seed, deadline):
        return self.spoil(strategy_named("greedy").search(task, cost_model, seed=seed, deadline=deadline))


def drop_a_table(plan: Plan) -> Plan:
    lost = plan.task.tables[-1].name
    return replace(plan, shards=[shard for shard in plan.shards if shard.table != lost])


def overlap_blocks(plan: Plan) -> Plan:
    return replace(plan, shards=[*plan.shards, plan.shards[0]])


def leave_out_a_row(plan: Plan) -> Plan:
    first, *rest = plan.shards
    return replace(plan, shards=[replace(first, rows=(first.rows[0] + 1, first.rows[1])), *rest])


def exceed_memory_by_one_byte(plan: Plan) -> Plan:
    """Pretend one device has a byte less than the plan takes there, by planning for the memory the plan uses and one byte less."""
    used = memory_account(plan.task, plan.shards).total
    busiest = int(used.argmax())
    memory = list(plan.task.topology.memory_bytes)
    memory[busiest] = int(used[busiest]) - 1
    return replace(plan, task=replace(plan.task, topology=replace(plan.task.topology, memory=memory)))


def answer_another_task(plan: Plan) -> Plan:
    return replace(plan, task=replace(plan.task, batch_size=plan.task.batch_size + 1))


def ignore_pinning(plan: Plan) -> Plan:
    pinned = plan.task.constraints.tables
    name = next((name for name, limits in pinned.items() if limits.devices), None)
    shards = [replace(s, devices=(3,)) if s.table == name else s for s in plan.shards]
    return replace(plan, shards=shards)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (drop_a_table, "missing from the plan"),
        (overlap_blocks, "overlaps"),
        (leave_out_a_row, "lie in no shard"),
        (answer_another_task, "another task"),
        (ignore_pinning, "pinned to"),
    ],
)
def test_a_planted_fault_is_caught(spoil, says):
    with pytest.raises(AssertionError, match=says):
        check_strategy(Faulty(spoil))


def test_memory_exceeded_by_one_byte_is_caught():
    """The suite's tight task holds exactly two tables a device; a strategy that believes in one byte more puts more there."""

    @dataclass(frozen=True)
    class OneByteMore:
        name: str = "one byte more"

        def supports(self, task):
            return None

        def search(self, task, cost_model, *, seed, deadline):
            used = [0] * task.topology.devices
            shards = []
            for table in task.tables:
                whole = Shard.whole(table, 0)
                need = int(memory_account(task, [whole]).total[0])
                fits = [d for d, u in enumerate(used) if u + need <= task.topology.memory_bytes[d] + need]
                if not fits:
                    raise InfeasibleTask("full")
                used[fits[0]] += need
                shards.append(Shard.whole(table, fits[0]))
            return Plan(task, shards, self.name, seed)

    with pytest.raises(AssertionError, match="may exceed its memory"):
        check_strategy(OneByteMore())


def test_one_byte_too_much_is_refused_by_the_checker_itself():
    from shardwright.errors import InvalidPlan
    from shardwright.testing.tasks import tight_task

    task = tight_task()
    plan = strategy_named("size").search(task, None, seed=0, deadline=None)
    plan.check()
    with pytest.raises(InvalidPlan, match="may exceed its memory"):
        exceed_memory_by_one_byte(plan).check()


def test_a_changed_input_is_caught():
    def change(plan: Plan) -> Plan:
        object.__setattr__(plan.task.topology, "memory", tuple(m + 1 for m in plan.task.topology.memory_bytes))
        return plan

    with pytest.raises(AssertionError, match="was changed"):
        check_strategy(Faulty(change))


def test_a_changed_constraint_is_caught():
    def change(plan: Plan) -> Plan:
        object.__setattr__(plan.task.constraints, "tables", {plan.task.tables[0].name: TableConstraint(max_shards=3)})
        return plan

    with pytest.raises(AssertionError, match="was changed"):
        check_strategy(Faulty(change))


def test_a_strategy_that_ignores_its_seed_is_caught():
    calls = []

    def alternate(plan: Plan) -> Plan:
        calls.append(1)
        movable = plan.task.topology.devices > 1 and not plan.task.constraints.tables
        target = (plan.shards[0].devices[0] + len(calls)) % plan.task.topology.devices if movable else None
        if target is None:
            return plan
        return replace(plan, shards=[replace(plan.shards[0], devices=(target,)), *plan.shards[1:]])

    with pytest.raises(AssertionError, match="same seed gave different"):
        check_strategy(Faulty(alternate))


def test_a_strategy_that_plans_nothing_is_caught():
    @dataclass(frozen=True)
    class Refuses:
        name: str = "refuses"

        def supports(self, task: Task):
            return "never"

        def search(self, task, cost_model, *, seed, deadline):
            raise InfeasibleTask("never")

    with pytest.raises(AssertionError, match="planned none"):
        check_strategy(Refuses())
