"""The command `python -m experiments`, which reruns the papers' experiments."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli.checks import check_folder
from shardwright.cli.errors import Interrupted, exit_code_of
from shardwright.cli.main import unwrapped
from shardwright.cli.options import AsJson, option
from shardwright.cli.output import Document, emit, progress
from shardwright.errors import InvalidInput

if TYPE_CHECKING:
    from experiments.run import Outcome


class _Experiments(Document):
    experiments: list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        argv: arguments after the program's name; by default the arguments of the process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=unwrapped(run.__doc__ or ""))(run)
    command = typer.main.get_command(app)
    return exit_code_of(
        lambda: command.main(arguments, prog_name="python -m experiments", standalone_mode=False),
        as_json="--json" in arguments,
    )


def run(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Experiments to run; without a name, list them.", show_default=False),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for pages, rows and pictures; rows stored there are reused.",
        ),
    ] = Path("benchmarks/results"),
    quick: Annotated[bool, typer.Option("--quick", help="Run only a part, in five minutes at most.")] = False,
    seconds: Annotated[
        float | None,
        option("--seconds", metavar="N", text="Start nothing new after N seconds; the same command resumes."),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", min=1, help="Processes; more than one lengthens measured search times."),
    ] = 1,
    stored: Annotated[
        bool, typer.Option("--stored", help="Run nothing; write pages anew from all stored rows.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rerun experiments of the papers. Each writes a dated page with tables and pictures, and its rows as Parquet.

    A full experiment takes up to two hours on two cores with --jobs 2. You can stop it at any time; the same command resumes it.

    Example:
        python -m experiments neuroshard-table --quick
    """
    from experiments.pages import require_matplotlib
    from experiments.registry import experiment_named, experiments
    from experiments.run import run_experiment, write_stored

    document: _Experiments
    if not names:
        listed = [{"name": each.name, "about": each.about} for each in experiments()]
        document = {"experiments": listed}
        emit(document, *(f"{each['name']:22} {each['about']}" for each in listed), as_json=as_json)
        return
    chosen = [experiment_named(name) for name in dict.fromkeys(names)]
    if seconds is not None and not seconds > 0:
        raise InvalidInput(f"--seconds is {seconds}, must be greater than 0; leave it out for no limit")
    require_matplotlib()
    check_folder(output)
    outcomes = []
    for experiment in chosen:
        command = f"python -m experiments {experiment.name}{' --quick' if quick else ''}"
        if stored:
            outcomes.append(write_stored(experiment, output, quick=quick, command=command))
            continue
        with progress(experiment.name) as report, _resumable(output):
            outcomes.append(
                run_experiment(
                    experiment,
                    output,
                    quick=quick,
                    seconds=seconds,
                    jobs=jobs,
                    progress=report,
                    command=command,
                )
            )
    document = {"experiments": [asdict(each) | {"files": list(map(str, each.files))} for each in outcomes]}
    emit(document, *map(_line, outcomes), as_json=as_json)


@contextmanager
def _resumable(output: Path) -> Iterator[None]:
    """Turn Ctrl-C into one line that explains how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; all results so far are in {output}: run the same command again to go on") from None


def _line(outcome: Outcome) -> str:
    done = f"{outcome.pieces} of {outcome.wanted} pieces of work, {outcome.made} now, in {outcome.seconds:.0f} s"
    return f"{outcome.name}: {done}; saved {', '.join(map(str, outcome.files))}"


if __name__ == "__main__":
    sys.exit(main())
