"""Where a cost model was learned, and whether that is here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardwright.measure.hardware import cpu_model, gpu_model


def learned_elsewhere(metadata: Mapping[str, str], kind: str, here: str | None = None) -> str | None:
    """What to say where a model was learned on another processor.

    Args:
        metadata: the model's.
        kind: "cpu" or "cuda".
        here: the processor whose times are predicted; by default that of this machine.

    Returns:
        A clause that goes after "the cost model"; None where the model was learned on that processor, or does not tell.
    """
    found = re.search(r"device_kind (\w+), processor (.*), cores ", metadata.get("hardware", ""))
    if found is None or found[1] != kind:
        return None
    here = here or (gpu_model() if kind == "cuda" else cpu_model())
    if found[2] == here:
        return None
    return (
        f"was learned on {found[2]}, this machine is {here}: times differ because the hardware does; for this one, run "
        "'shardwright collect', then 'shardwright train', and name the model with --model"
    )
