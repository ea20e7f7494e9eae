"""Train the bundled policies anew: `make policies`.

    python -m benchmarks.learn_policies --processor MODEL [--rounds N] [FOLDER]

Both policies learn from the tasks of `policies.yaml`, priced by the model of one processor and by published GPUs. `learned_quality` tests
on devices and tables that training leaves out: another processor, the measured H100, the published A100 and half of all tables. A stopped
training resumes when the program starts again. TensorBoard reads its figures from `out/learned/logs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.program import options_of
from shardwright.cost.files import load_model
from shardwright.cost.published import PublishedModel
from shardwright.learned.options import PricedAutoShard, PricedDreamShard
from shardwright.learned.policy_files import bundled_policy, save_policy
from shardwright.learned.records import TrainingRecord
from shardwright.learned.trainer import learn
from shardwright.learned.worlds import SimulatedWorld
from shardwright.threads import one_thread
from shardwright.workload.training_tasks import load_training_tasks

LOGS = Path("out/learned/logs")
GPUS = ("rtx2080ti", "v100", "h200", "b200", "mi250", "mi300")
"""Published GPUs to learn from: neither the H100 nor the A100."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, folder=(bundled_policy("dreamshard").parent, "", {"positional": True, "nargs": "?"}),
        processor=(Path, "cost model of the processor to learn from", {"required": True}),
        tasks=Path(__file__).with_name("policies.yaml"), strategies=(("dreamshard", "autoshard"), "", ("dreamshard", "autoshard")),
        rounds=(int, "rounds of each training; by default those of its options"), logs=(LOGS, ""),
    )  # fmt: skip
    tasks = load_training_tasks(options.tasks).tasks
    world = SimulatedWorld(load_model(options.processor), tuple(PublishedModel(gpu) for gpu in GPUS))
    options.folder.mkdir(parents=True, exist_ok=True)
    checkpoints = []
    for strategy in options.strategies:
        kind = PricedDreamShard if strategy == "dreamshard" else PricedAutoShard
        how = kind(rounds=options.rounds) if options.rounds else kind()
        logs = options.logs / strategy
        logs.mkdir(parents=True, exist_ok=True)
        checkpoints.append(logs / "checkpoint")
        with one_thread(), TrainingRecord(logs) as record:
            policy = learn(tasks, world, how, record=record, checkpoint=checkpoints[-1])
        save_policy(policy, options.folder / f"{strategy}.safetensors")
    for checkpoint in checkpoints:  # kept until all policies are there: a restart does not repeat a finished training
        checkpoint.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
