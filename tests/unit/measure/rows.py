"""Works and visits for tests of sample stores."""

from __future__ import annotations

from shardwright.measure.device_work import DeviceWork, Job, Visit
from shardwright.sharding.work import ShardWork
from shardwright.task import AccessProfile

HERE = {"device_kind": "cpu", "processor": "abacus", "cores": "2", "backend": "fbgemm", "torch": "2", "fbgemm": "1"}
THERE = {**HERE, "processor": "slide rule"}


def work(number: int, optimizer: str = "sgd") -> DeviceWork:
    """A work of one to three shards."""
    shards = 1 + number % 3
    shard = ShardWork(100 + number, 8, 16, 32.5, True, AccessProfile.zipf(100 + number, 1.0))
    return DeviceWork((shard,) * shards, tuple(range(number, number + shards)), optimizer)


def job(number: int, label: str = "", kind: str = "random", optimizer: str = "sgd") -> Job:
    """A job whose work is `work(number, optimizer)`."""
    return Job(work(number, optimizer), kind, label)


def visit(forward: float = 1.5, sentinel: float = 1.0, usual: float = 1.0) -> Visit:
    """A visit whose backward takes twice as long."""
    return Visit(forward, 2 * forward, 3, sentinel, usual, 1_700_000_000.0)
