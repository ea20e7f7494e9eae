"""Codecs cost time on the devices that convert values and gradients."""

from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.cost import PublishedModel
from shardwright.cost.conversion import conversion_ms
from shardwright.cost.for_task import for_task
from shardwright.cost.published import GPUS
from shardwright.cost.score import kernels_and_links, score, scored, synchronisation_ms
from shardwright.search.bound import lower_bound
from shardwright.sharding import Plan, Shard
from shardwright.task.topology import Exchange, Topology

TABLES = (sw.Table("wide", 100_000, 128, 10.0), sw.Table("two", 1_000, 64, [2.0, 3.0]), sw.Table("small", 100, 16, 1.0))
HALF = Exchange(values="fp16", gradients="bf16")
MODEL = PublishedModel("h100")


def _task(exchange: Exchange = HALF, topology: Topology | None = None, tables=TABLES) -> sw.Task:
    return sw.Task(tables, topology or Topology(1, 4, "h100", "80 GB"), 65_536, exchange=exchange)


def _plan(task: sw.Task, replicated: bool = False) -> Plan:
    last = Shard("small", (0, 100), (0, 16), (0, 1, 2, 3) if replicated else (2,))
    return Plan(task, (Shard("wide", (0, 100_000), (0, 128), (0,)), Shard("two", (0, 1_000), (0, 64), (1,)), last))


def _added(plan: Plan):
    """`(devices, 2)` forward and backward kernel ms that conversion adds."""
    times = []
    for conversion in ("codec", "kernel"):
        task = replace(plan.task, exchange=replace(plan.task.exchange, conversion=conversion))
        times.append([(device.forward_ms, device.backward_ms) for device in score(task, plan.shards, MODEL).devices])
    return [
        tuple(with_it - without for with_it, without in zip(*pair, strict=True)) for pair in zip(*times, strict=True)
    ]


def test_holders_encode_their_outputs_and_decode_their_gradients() -> None:
    encoding, decoding = conversion_ms("h100", "fp16")
    assert (
        6 / GPUS["h100"].bandwidth * 1e3 < decoding < encoding
    )  # 4 bytes read, 2 written, at less than the memory's bandwidth
    own = 65_536 / 4 * (128 + 2 * 64 + 16)  # each device converts its own samples, whatever it holds
    held = [65_536 * columns for columns in (128, 2 * 64, 16)]  # features that share a table have an output each
    added = _added(_plan(_task()))
    for (forward, backward), values in zip(added, held, strict=False):
        assert forward == pytest.approx(values * encoding + own * decoding)
        assert backward == pytest.approx(values * decoding + own * encoding)
    assert added[3] == (0.0, 0.0)  # a device without blocks costs nothing


def test_values_and_gradients_are_converted_apart() -> None:
    added = _added(_plan(_task(Exchange(values="int8"))))
    encoding, decoding = conversion_ms("h100", "int8")
    own = 65_536 / 4 * (128 + 2 * 64 + 16)
    assert added[0] == pytest.approx((65_536 * 128 * encoding + own * decoding, 0.0))


def test_replicas_convert_no_outputs() -> None:
    whole, replicated = (_added(_plan(_task(), replicated)) for replicated in (False, True))
    assert replicated[1] == pytest.approx(whole[1])
    assert replicated[2][0] < whole[2][0]


@pytest.mark.parametrize(
    "task",
    [
        _task(replace(HALF, conversion="kernel")),
        _task(Exchange()),
        _task(topology=Topology(1, 4, "cpu", "80 GB")),
        _task(topology=Topology(1, 1, "h100", "80 GB")),
    ],
    ids=["by the lookup kernel", "fp32", "unknown rate", "one device"],
)
def test_nothing_is_added(task: sw.Task) -> None:
    assert for_task(MODEL, task) is MODEL


def test_sequences_convert_every_lookup() -> None:
    added = _added(
        Plan(
            _task(tables=(sw.Table("clicks", 1_000, 32, 5.0, pooled=False),)),
            (Shard("clicks", (0, 1_000), (0, 32), (0,)),),
        )
    )
    encoding, decoding = conversion_ms("h100", "fp16")
    assert added[0][0] == pytest.approx(65_536 * 5 * 32 * (encoding + decoding / 4))


def test_synchronisation_and_measured_kernels_leave_codecs_out() -> None:
    plan = scored(_plan(_task()), MODEL)
    assert not synchronisation_ms(plan.task, plan.shards).any()
    alone, plain = kernels_and_links(plan), score(_task(replace(HALF, conversion="kernel")), plan.shards, MODEL)
    for device, without in zip(alone.cost.devices, plain.devices, strict=True):
        assert (device.forward_ms, device.backward_ms) == pytest.approx((without.forward_ms, without.backward_ms))


def test_the_bound_counts_codecs_and_the_search_spreads_them() -> None:
    plans, bounds = zip(
        *(
            (sw.plan(task, cost_model=MODEL, time_limit=1.0), lower_bound(task, for_task(MODEL, task)))
            for task in (_task(), _task(replace(HALF, conversion="kernel")))
        ),
        strict=True,
    )
    for plan, bound in zip(plans, bounds, strict=True):
        assert bound.ms <= plan.cost.step_ms * (1 + 1e-9)
    assert bounds[0].ms > bounds[1].ms
