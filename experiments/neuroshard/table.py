"""`neuroshard-table`: all strategies on the tasks of NeuroShard's benchmark, for several largest dims, on four and eight devices.

References:
    [neuroshard] Zha et al., Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural Cost Models, MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product

from experiments.entrants import COMPARED, TORCHREC, entrant, model_version, torchrec_installed
from experiments.experiment import Page, Piece, Row
from experiments.neuroshard.table_page import BATCH_SIZE, LIMITS, MEASURED, PLANNED, ROUNDS, SEED, made_page
from experiments.outcomes import planned
from shardwright.task.task import Task

DEVICES = (4, 8)
MAX_DIMS = (4, 8, 16, 32, 64, 128)
TASKS, TORCHREC_TASKS = 100, 15
QUICK_MAX_DIMS, QUICK_TASKS = (4, 32, 128), 2
QUICK_TORCHREC_TASKS = {4: 1, 8: 0}  # by number of devices: TorchRec's planner takes longer than all others together
QUICK_MEASURED = {"devices": 4, "max_dim": 32, "task": 0}


@dataclass(frozen=True)
class NeuroShardTable:
    """The experiment `neuroshard-table`.

    Attributes:
        strategies: names of the compared strategies.
        measure: whether to measure the plans of some tasks on this machine's kernels.
    """

    strategies: tuple[str, ...] = COMPARED
    measure: bool = True
    name: str = "neuroshard-table"
    about: str = "All strategies on NeuroShard's tasks: max dim 4 to 128, 4 and 8 devices (NeuroShard, MLSys 2023)"

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """Task by task through all settings, each by all strategies; TorchRec's planner gets the first tasks only.

        One task of each setting is measured. Its number differs by setting, because tasks of one number have similar counts of tables.
        """
        work = []
        for number in range(QUICK_TASKS if quick else TASKS):
            for place, (devices, max_dim) in enumerate(product(DEVICES, QUICK_MAX_DIMS if quick else MAX_DIMS)):
                setting = {"devices": devices, "max_dim": max_dim, "task": number}
                names = self._strategies(QUICK_TORCHREC_TASKS[devices] if quick else TORCHREC_TASKS, number)
                work += [Piece({"part": PLANNED, **setting, "by": name}, _version(name)) for name in names]
                if self._measures and (setting == QUICK_MEASURED if quick else number == place):
                    work.append(Piece({"part": MEASURED, **setting, "by": "all"}, self._measured_version(), alone=True))
        return work

    def run(self, piece: Piece) -> Sequence[Row]:
        """Plan a task by one strategy; or plan it by all strategies and measure the plans."""
        from experiments.neuroshard.plans_on_kernels import measured_rows

        number = int(piece.key["task"])
        task = _tasks(int(piece.key["devices"]), int(piece.key["max_dim"]))[number]
        if piece.key["part"] == MEASURED:
            entrants = [entrant(name, LIMITS) for name in self._strategies(TASKS, 0)]
            return measured_rows(task, entrants, seed=number, rounds=ROUNDS)
        name = str(piece.key["by"])
        row, _ = planned(task, entrant(name, LIMITS), seed=number)
        return [{"strategy": name, "measured_ms": None} | row]

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """The tables by setting, and a picture of costs over the largest dim."""
        return made_page(rows, self.strategies)

    def _strategies(self, torchrec_tasks: int, number: int) -> list[str]:
        with_torchrec = number < torchrec_tasks and torchrec_installed()
        return [name for name in self.strategies if name != TORCHREC or with_torchrec]

    @property
    def _measures(self) -> bool:
        return self.measure and find_spec("torch") is not None

    def _measured_version(self) -> str:
        from shardwright.hardware import default_backend

        versions = [entrant(name, LIMITS).version for name in self._strategies(TASKS, 0)]
        return "; ".join([default_backend(), f"{ROUNDS} rounds", model_version("cpu"), *filter(None, versions)])


@cache
def _version(name: str) -> str:
    return ", ".join(filter(None, (entrant(name, LIMITS).version, model_version("cpu"))))


@cache
def _tasks(devices: int, max_dim: int) -> list[Task]:
    from shardwright.workload import paper_tasks

    return paper_tasks(TASKS, devices=devices, max_dim=max_dim, seed=SEED, batch_size=BATCH_SIZE, device="cpu")
