"""The names that topologies use for devices, from what the hardware calls itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardwright.task import PRESETS


def device_type(hardware: Mapping[str, str]) -> str:
    """The name that topologies use for a device: "NVIDIA H200" → "h200"; a name of its own where no preset has it."""
    if hardware["device_kind"] == "cpu":
        return "cpu"
    name = re.sub(r"[^a-z0-9]", "", hardware["processor"].lower())
    known = (preset.device for preset in PRESETS.values())
    return next((device for device in known if device in name), name)


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
