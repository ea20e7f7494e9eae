"""A plan for a training script: TorchRec's sharding plan, and Python lines that load it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.files import dump_document, write_atomically

if TYPE_CHECKING:
    from shardwright.sharding import Plan

_SCRIPT = '''\
"""Made by `shardwright plan --export torchrec`: loads the plan of {plan}.

    model = sharded(model, device)                        # trains on this plan; call it on every rank, as you call DistributedModelParallel
    EmbeddingShardingPlanner(constraints=CONSTRAINTS)      # or: keep TorchRec's planner, and give it the plan's sharding types
"""

from pathlib import Path

import torch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.planner.types import ParameterConstraints

from shardwright.integrations.torchrec import load_sharding_plan

PLAN = Path(__file__).with_name({file!r})


def sharded(model: torch.nn.Module, device: torch.device) -> DistributedModelParallel:
    return DistributedModelParallel(model, device=device, plan=load_sharding_plan(PLAN, model))


{constraints}
'''


def exported_files(output: Path) -> tuple[Path, Path]:
    """The sharding plan and the Python file that are saved beside a plan: `plan.torchrec.json`, `plan_torchrec.py`."""
    return output.with_name(f"{output.stem}.torchrec.json"), output.with_name(f"{output.stem}_torchrec.py")


def export_to_torchrec(plan: Plan, output: Path) -> tuple[Path, Path]:
    """Save a plan for TorchRec beside its own file.

    Raises:
        InvalidPlan: TorchRec cannot run the plan.
        InvalidInput: the files cannot be written.
    """
    from shardwright.sharding.torchrec_files import constraints_code, sharding_plan_to_export

    file, script = exported_files(output)
    write_atomically(file, dump_document(sharding_plan_to_export(plan), file))
    lines = _SCRIPT.format(plan=output.name, file=file.name, constraints=constraints_code(plan))
    write_atomically(script, lines)
    return file, script
