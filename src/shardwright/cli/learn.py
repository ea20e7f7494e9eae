"""`shardwright learn`: learn the policy of a strategy from training tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import typer

from shardwright.cli.checks import check_folder, check_target
from shardwright.cli.errors import Interrupted, about
from shardwright.cli.model_notes import print_model_notes
from shardwright.cli.options import AsJson, Device, ModelFile, RayAddress, Seed, option
from shardwright.cli.output import MISSING, emit, note, progress, saved, table
from shardwright.errors import InvalidInput, require
from shardwright.threads import one_thread

if TYPE_CHECKING:
    import rich.table

    from shardwright.cli.documents import measuring
    from shardwright.learned.options import PolicyOptions
    from shardwright.learned.worlds import World
    from shardwright.measure.remote import Fleet
    from shardwright.task import Task

Options = TypeVar("Options", bound="PolicyOptions")

PRESET = "preset=published"


def options_from_texts(kind: type[Options], chosen: Mapping[str, Any], texts: Sequence[str]) -> Options:
    """Build the options of a training run.

    Args:
        kind: class of the options; every default is a number or a text.
        chosen: options with their own flag.
        texts: further options, such as "learning_rate=0.001"; "preset=published" makes the paper's values the defaults.

    Raises:
        InvalidInput: a text is not NAME=VALUE, names no option or one that is set already, or a value has a wrong type or breaks a rule.
    """
    defaults = {field.name: field.default for field in fields(kind)}
    published, values = kind.published_values, dict(chosen)
    for text in dict.fromkeys(texts):
        if published and text == PRESET:
            continue
        name, equals, value = text.partition("=")
        if not equals or name not in defaults:
            close = get_close_matches(name, defaults, n=1)
            hint = f"did you mean '{close[0]}'? " if close else ""
            hint += f"{PRESET} is the one preset; " if name == "preset" and published else ""
            raise InvalidInput(f"--option {text!r} must be NAME=VALUE; {hint}names are {', '.join(defaults)}")
        if name in values:
            raise InvalidInput(
                f"--option {text!r}: {name} is already set; give each option once, and those that have a flag by the flag"
            )
        values[name] = _value(text, value, defaults[name])
    return kind(**{**published, **values} if PRESET in texts else values)


def _value(text: str, value: str, default: object) -> int | float | str:
    """Convert the value to the type of the default."""
    if isinstance(default, str):
        return value
    try:
        return float(value) if isinstance(default, float) else int(value)
    except ValueError:
        wanted = "a number" if isinstance(default, float) else "a whole number"
        raise InvalidInput(f"--option {text!r}: the value must be {wanted}") from None


@contextmanager
def learning_fleet(address: str | None, device: str, *, simulated: bool) -> Iterator[Fleet | None]:
    """Workers of one kind on a cluster; None without an address.

    Args:
        address: address of the cluster.
        device: "cpu" or "cuda", the device to measure costs on.
        simulated: whether costs come from a cost model.

    Raises:
        InvalidInput: an address is given although costs are simulated.
        ClusterFailed: the cluster does not answer, or lends nothing.
    """
    if address is None:
        yield None
        return
    if simulated:
        raise InvalidInput(
            f"--ray {address}: simulated costs are computed here; leave --ray out, or learn from --measured costs"
        )
    from shardwright.cluster import open_cluster
    from shardwright.measure.remote import open_fleet

    with open_cluster(address) as cluster, open_fleet(cluster, device) as fleet:
        for text in fleet.notes:
            note(text)
        yield fleet


Learner: TypeAlias = Literal["autoshard", "dreamshard"]
_LENGTH = {"autoshard": "steps", "dreamshard": "iterations"}
_ROUNDS = "rounds"
_MEASURED_STEPS = 20_000  # of autoshard if every placement is measured: this takes some minutes


def run(
    *,
    strategy: Annotated[Learner, typer.Argument(metavar="autoshard|dreamshard", show_default=False)],
    tasks: Annotated[Path, option("--tasks", metavar="FILE", text="Training tasks, YAML or JSON.")],
    output: Annotated[Path, option("--output", "-o", metavar="FILE", text="Save the policy here, as safetensors.")],
    simulated: Annotated[
        bool,
        typer.Option(
            "--simulated/--measured", help="Costs to learn from: a cost model's, or kernels measured on this machine."
        ),
    ] = True,
    model: ModelFile = None,
    device: Device = "cpu",
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Rounds of the training; by default enough for a good policy.")
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option("--iterations", min=1, help=f"Instead of rounds: dreamshard's iterations, measured or {PRESET}."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help=f"Instead of rounds: autoshard's placed tables, measured or {PRESET}."),
    ] = None,
    options: Annotated[
        list[str] | None,
        option(
            "--option",
            metavar="NAME=VALUE",
            text="Any other option of the training, or preset=published for the paper's; repeat for several.",
        ),
    ] = None,
    log: Annotated[
        Path | None, option("--log", metavar="FOLDER", text="Write the training's figures here, for TensorBoard.")
    ] = None,
    checkpoint: Annotated[
        Path | None, option("--checkpoint", metavar="FILE", text="Save the state here; if it exists, resume from it.")
    ] = None,
    seed: Seed = 0,
    ray: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Train a policy that places tables, for use by 'shardwright plan'. The policy file records the training.

    A policy reads the prices of the task's cost model. Trained with --measured or preset=published, it reads table features and has
    its own cost network. With --checkpoint, a stopped command resumes and ends with the same policy. With --ray, a cluster measures
    placements; the policy is the same.

    Example:
        shardwright learn dreamshard --tasks train.yaml -o dreamshard.safetensors
        shardwright learn autoshard --tasks train.yaml --measured -o autoshard.safetensors --ray ray://head:10001
        shardwright plan task.yaml --strategy dreamshard --policy dreamshard.safetensors
    """
    require("learn", "learning")
    from shardwright.learned.policy_files import save_policy
    from shardwright.learned.records import TrainingRecord
    from shardwright.learned.trainer import learn
    from shardwright.learned.worlds import MeasuredWorld
    from shardwright.workload.training_tasks import load_training_tasks

    check_target(output, inputs=[tasks, model], outputs=[checkpoint])
    check_target(checkpoint, inputs=[tasks, model])
    if log is not None:
        check_folder(log)
    published = PRESET in (options or ())
    if strategy == "autoshard" and not simulated and not published:
        steps = steps or _MEASURED_STEPS
    priced = simulated and not published
    chosen = _length(strategy, priced, {_ROUNDS: rounds, "iterations": iterations, "steps": steps}) | {"seed": seed}
    training, how = load_training_tasks(tasks), _options(strategy, priced, chosen, options or ())
    world = _world(training.tasks, model, device, simulated=simulated)
    with (
        _resumable(checkpoint),
        learning_fleet(ray, device, simulated=simulated) as fleet,
        progress("learning", detail="the first step") as report,
        one_thread(),
        TrainingRecord(log, report) as record,
    ):
        if fleet is not None:
            world = MeasuredWorld(device, fleet=fleet)
        with about(tasks):
            policy = learn(training.tasks, world, how, record=record, checkpoint=checkpoint)
    save_policy(policy, output)
    document: measuring.Learn = {"strategy": strategy, "metadata": policy.metadata, "figures": record.rows}
    view = figures_table(f"training of {strategy}", record.rows)
    origin = f"learned from costs {world.name}, on {training.description}"
    emit(document, view, origin, saved(output), as_json=as_json)


def _length(strategy: Learner, priced: bool, named: Mapping[str, int | None]) -> dict[str, int]:
    """The length of the training, if given, under the name that its options have for it."""
    own = _ROUNDS if priced else _LENGTH[strategy]
    for name, value in named.items():
        if value is not None and name != own:
            what = strategy if priced else f"{strategy} with its own cost network"
            raise InvalidInput(f"--{name} {value}: {what} counts its training in {own}; give --{own}")
    return {name: value for name, value in named.items() if value is not None}


def _world(tasks: Sequence[Task], model: Path | None, device: str, *, simulated: bool) -> World:
    """The source of costs: a cost model, or measurements.

    Raises:
        InvalidInput: no cost model serves all tasks, or options contradict each other.
    """
    from shardwright.cost import resolve_cost_model
    from shardwright.learned.worlds import MeasuredWorld, SimulatedWorld

    if not simulated:
        if model is not None:
            raise InvalidInput(f"--model {model}: measured costs need no cost model; leave --model or --measured out")
        require("measure", "measuring")
        return MeasuredWorld(device)
    devices = sorted({task.topology.device for task in tasks})
    if len(devices) > 1 and model is None:
        raise InvalidInput(
            f"--tasks: the tasks are for several device types ({', '.join(devices)}), but a cost model prices one; use tasks of one type, "
            "or name a model with --model"
        )
    cost_model = resolve_cost_model(model, tasks[0])
    print_model_notes(cost_model, tasks[0])
    return SimulatedWorld(cost_model)


def _options(strategy: Learner, priced: bool, chosen: dict[str, int], texts: Sequence[str]) -> PolicyOptions:
    """The options of the strategy's training; raises InvalidInput if a text is no option."""
    from shardwright.learned.options import AutoShardOptions, DreamShardOptions, PricedAutoShard, PricedDreamShard

    kinds: dict[tuple[Learner, bool], type[PolicyOptions]] = {
        ("autoshard", True): PricedAutoShard,
        ("autoshard", False): AutoShardOptions,
        ("dreamshard", True): PricedDreamShard,
        ("dreamshard", False): DreamShardOptions,
    }
    return options_from_texts(kinds[strategy, priced], chosen, texts)


@contextmanager
def _resumable(checkpoint: Path | None) -> Iterator[None]:
    """Make Ctrl-C end the command with one line that states whether the training can resume."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoint is not None and checkpoint.exists():
            raise Interrupted(f"stopped; the state is in {checkpoint}: run the same command again to go on") from None
        raise Interrupted("stopped without saving; name a --checkpoint to resume later") from None


def figures_table(title: str, rows: Sequence[dict[str, float | None]]) -> rich.table.Table:
    """A table of the training's figures: first, last, least and most of each in this run."""
    names = [name for name in rows[-1] if name != "iteration"] if rows else []
    return table(title, ("figure", "first", "last", "least", "most"), [_summary(name, rows) for name in names])


def _summary(name: str, rows: Sequence[dict[str, float | None]]) -> list[str]:
    values = [row.get(name) for row in rows]
    known = [value for value in values if value is not None]
    shown = [values[0], values[-1], *([min(known), max(known)] if known else [None, None])]
    return [name, *(MISSING if value is None else f"{value:.4g}" for value in shown)]
