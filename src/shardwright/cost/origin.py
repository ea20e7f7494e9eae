"""Where a cost model was learned, and whether that is here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardwright.measure.hardware import cpu_model, gpu_model


def learned_elsewhere(metadata: Mapping[str, str], kind: str) -> str | None:
    """What to say where a model was learned on another processor of this kind; None where it was not, or does not tell."""
    found = re.search(r"device_kind (\w+), processor (.*), cores ", metadata.get("hardware", ""))
    if found is None or found[1] != kind:
        return None
    here = gpu_model() if kind == "cuda" else cpu_model()
    if found[2] == here:
        return None
    return (
        f"was learned on {found[2]}, this machine is {here}: times differ because the hardware does; for this one, run "
        "'shardwright collect', then 'shardwright train', and name the model with --model"
    )
