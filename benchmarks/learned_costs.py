"""Errors of cost networks on devices they never saw, against the pre-trained cost model and repeat noise.

    python -m benchmarks.learned_costs                 # against the bundled cost model, from which the policies learned
    python -m benchmarks.learned_costs --measured 40   # against kernels measured on this machine, twice

Tables come from the test half of the pool. Each task has one placement by `size_lookup` and others at random with unequal devices.
In a simulated world the pre-trained model is the world itself, so its error is 0 by definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from experiments.entrants import policy_version
from experiments.learned.tasks import Setting, draw_tasks

from benchmarks import results_table
from benchmarks.learned_predictors import (
    OUTPUTS,
    Floats,
    Outputs,
    Predictor,
    autoshard_predictor,
    dreamshard_predictor,
    held,
    random_placement,
    sorted_placement,
    true_outputs,
)
from benchmarks.program import Options, options_of
from shardwright.cost import cost_model_for
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.worlds import MeasuredWorld, Placed, SimulatedWorld, World

NAME = "learned_costs"
Rows = list[tuple[str, ...]]


@dataclass(frozen=True)
class Case:
    """A placement, its true costs, and predictions of them.

    Attributes:
        balanced: whether a heuristic made the placement.
        occupied: `(d,)` devices that hold shards.
        true: true costs of the placement.
        said: predicted costs, by the name of the predictor.
    """

    balanced: bool
    occupied: npt.NDArray[np.bool_]
    true: Outputs
    said: dict[str, Outputs]


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, settings=([Setting.of("20x4"), Setting.of("50x4"), Setting.of("80x8")], "", Setting.of),
        placements=(300, "placements in a simulated world"),
        measured=(int, "so many placements, measured on this machine", {"metavar": "N"}),
        rounds=(2, "how often each device is measured, each time"),
        networks=(["dreamshard", "autoshard"], "", ["dreamshard", "autoshard"]),
        dreamshard=(Path, "policy of dreamshard with a cost network", {"metavar": "POLICY"}),
        autoshard=(Path, "policy of autoshard with a cost network", {"metavar": "POLICY"}),
    )  # fmt: skip
    model = cost_model_for("cpu")
    placed = placements(options)
    world: World = MeasuredWorld("cpu", rounds=options.rounds) if options.measured else SimulatedWorld(model)
    true = world.costs([each for _, each in placed])
    again = world.costs([each for _, each in placed]) if options.measured else None
    bundled = SimulatedWorld(model).costs([each for _, each in placed])
    networks = predictors(options)
    cases = []
    for index, (balanced, each) in enumerate(placed):
        said = {name: predict(*each) for name, predict in networks.items()}
        said[f"pre-trained {model.name}"] = true_outputs(bundled[index])
        if again is not None:
            said["second measurement"] = true_outputs(again[index])
        cases.append(Case(balanced, held(each), true_outputs(true[index]), said))
    write_page(cases, options, world.name, results_table.command_of(NAME, arguments))


def predictors(options: Options) -> dict[str, Predictor]:
    """Return the cost networks by name and policy."""
    makers = {"dreamshard": dreamshard_predictor, "autoshard": autoshard_predictor}
    paths = {name: getattr(options, name) for name in options.networks}
    return {f"{name}, {policy_version(name, path)}": makers[name](path) for name, path in paths.items()}


def placements(options: Options, of_task: int = 4) -> list[tuple[bool, Placed]]:
    """Return placements, each with whether it is balanced; about a quarter of them are."""
    count = options.measured or options.placements
    tasks = -(-count // (of_task * len(options.settings)))
    found: list[tuple[bool, Placed]] = []
    rng = np.random.default_rng(0)
    for of_setting in zip(*(draw_tasks(setting, tasks) for setting in options.settings), strict=True):
        for task in of_setting:
            arrays = PlacementArrays.of(task)
            found.append((True, (arrays, sorted_placement(task, arrays, cost_model_for("cpu")))))
            drawn = [random_placement(arrays, rng) for _ in range(of_task - 1)]
            found += [(False, (arrays, each)) for each in drawn if each is not None]
    return found[:count]


def write_page(cases: list[Case], options: Options, world: str, command: str) -> None:
    noise = (
        "The second measurement is the same placements measured again: no prediction can be closer than that."
        if options.measured
        else "The pre-trained model is the world here, so its error is 0; --measured compares both with kernels."
    )
    caption = (
        f"World: {world}. {len(cases)} placements of unseen tables ({', '.join(setting.name for setting in options.settings)}), devices "
        f"that hold shards. Error: |predicted − true| / true. {noise} Kernels are measured, communication is computed from the topology."
    )
    rows = {
        "all": cases,
        "balanced": [case for case in cases if case.balanced],
        "random": [case for case in cases if not case.balanced],
    }
    table = [row for kind, chosen in rows.items() for row in error_rows(kind, chosen)]
    heads = (
        "placements", "output", "by", "values", "mean error", "median", "90th percentile", "signed, median", "mean ms",
    )  # fmt: skip
    name = f"{NAME}_measured" if options.measured else NAME
    results_table.write_results(name, "Errors of cost networks on unseen shards", [(caption, heads, table)], command)


def error_rows(kind: str, cases: list[Case]) -> Rows:
    """Return the errors of every output, for each of its predictors."""
    rows: Rows = []
    for output in OUTPUTS:
        for name in cases[0].said if cases else ():
            own = [case for case in cases if output in case.said[name]]
            if not own:
                continue
            true, said = (
                np.concatenate(values) for values in zip(*(values_of(case, name, output) for case in own), strict=True)
            )
            errors = said / true - 1
            size = np.abs(errors)
            shown = [f"{share:.1%}" for share in (size.mean(), np.median(size), np.percentile(size, 90))]
            rows.append((kind, output, name, str(true.size), *shown, f"{np.median(errors):+.1%}", f"{true.mean():.3f}"))
    return rows


def values_of(case: Case, name: str, output: str) -> tuple[Floats, Floats]:
    """Return true and predicted values of the devices that hold shards, or of the whole placement."""
    true, said = case.true[output], case.said[name][output]
    chosen = case.occupied if true.size > 1 or case.occupied.size == 1 else np.ones(1, dtype=bool)
    counted = chosen & (true > 0)
    return true[counted], said[counted]


if __name__ == "__main__":
    main()
