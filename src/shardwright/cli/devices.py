"""The names that topologies use for devices, from what the hardware calls itself."""

from __future__ import annotations

from shardwright.cost.origin import device_type


def other_device(plan_for: str, kind: str) -> str | None:
    """Why times predicted for a device type are not compared with those of this machine's "cpu" or "cuda" device; None if they are."""
    from shardwright.report import not_comparable

    return not_comparable(plan_for, measured_device(kind))


def measured_device(kind: str) -> str:
    """The device type of this machine's "cpu" or "cuda" device."""
    if kind != "cuda":
        return "cpu"
    from shardwright.measure.hardware import gpu_model

    return device_type({"device_kind": kind, "processor": gpu_model()})
