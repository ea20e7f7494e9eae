"""Walks the way of a stranger: see the package."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tests.stranger.logs import write_logs

ROOT = Path(__file__).parents[2]
TITLE = "The first hour of a new user"


@dataclass(frozen=True)
class Step:
    """One action of a stranger.

    Attributes:
        what: description of the action.
        command: the command line; `shardwright` and `python` are those of the environment.
        says: words that it must print.
        code: its exit code.
        names: a pattern whose group is a name that it prints; `NAME` in later commands stands for it.
    """

    what: str
    command: str
    says: tuple[str, ...] = ()
    code: int = 0
    names: str = ""


WAY = (
    Step("a log without header", "shardwright profile train.txt", ("--no-header", "--columns"), 2),
    Step(
        "its columns by name, without the integers",
        "shardwright profile train.txt --columns label,I1..I13,C1..C26 --exclude 'I*' --exclude label -o tables.yaml --task task.yaml",
        ("saved task.yaml", "next: shardwright plan task.yaml"),
    ),
    Step("JSON lines", "shardwright profile clicks.jsonl --hashed page", ("'device' is left out: struct",)),
    Step(
        "Parquet of every kind",
        "shardwright profile views.parquet",
        ("'hash' is left out", "'where' is left out", "'deep' is left out", "'when' is left out", "--hashed"),
    ),
    Step(
        "a plan for a cluster by flags",
        "shardwright plan tables.yaml --devices h100-8 --hosts 2 --batch 64Ki --reserve 20% -o cluster.json",
        ("of 64.0 GB", "cost model h100/", "sets it had not seen"),
    ),
    Step("the model that it names", "shardwright models show h200/published", ("figures that others have published",)),
    Step(
        "a plan for two processes, for TorchRec",
        "shardwright plan two.yaml -o plan.json --export torchrec",
        ("saved plan_torchrec.py",),
    ),
    Step("is it right?", "shardwright plan --check plan.json", ("every rule is kept",)),
    Step("a plan given as a task", "shardwright plan plan.json", ("--check", "--from"), 2),
    Step("in the terminal", "shardwright show plan.json", ("what a step waits for",)),
    Step("in a browser", "shardwright report plan.json -o report.html", ("saved report.html",)),
    Step("what other searches find", "shardwright compare two.yaml --strategies greedy,certified --time-limit 2"),
    Step("is it any good?", "shardwright review plan.json --time-limit 2"),
    Step("has the traffic moved?", "shardwright drift plan.json train2.yaml --time-limit 2"),
    Step(
        "how many devices?", "shardwright scale two.yaml --hosts 1,2 --devices h100-8 --price h100=2.5", ("$/billion",)
    ),
    Step("too little time to measure", "shardwright tune two.yaml --minutes 0.05", ("give at least --minutes 0.2",), 2),
    Step(
        "a cost model of this machine",
        "shardwright calibrate two.yaml --minutes 0.3",
        ("sets measured in", "saved "),
        names=r"model (cpu/\S+) made",
    ),
    Step("what it is", "shardwright models show NAME", ("mean_error",)),
    Step(
        "plans by it", "shardwright plan two.yaml --model NAME -o named.json", ("cost model NAME: calibrated on this",)
    ),
    Step("a plan that names it", "shardwright review named.json --time-limit 2"),
    Step(
        "a plan by measuring",
        "shardwright tune two.yaml --minutes 0.3 -o tuned.json",
        ("measured step", "saved tuned.json"),
        names=r"pass --model (\S+)",
    ),
    Step(
        "plans by its model",
        "shardwright plan two.yaml --model NAME -o again.json",
        ("cost model NAME: tuned on this",),
    ),
    Step("both side by side", "shardwright report tuned.json again.json -o two.html", ("saved two.html",)),
    Step("a plan's kernels", "shardwright verify tuned.json --rounds 1"),
    Step(
        "two steps of training, two processes", f"python {Path(__file__).with_name('trained.py')} .", ("two steps on",)
    ),
)

TAKEN = (
    ("`profile`: last line", "the command to run next", "the shell"),
    ("`profile -o`", "tables.yaml", "`plan … --devices --batch`, `drift`, `{file: …}` in a task"),
    ("`profile --task`", "task.yaml", "`plan`, `compare`, `scale`, `tune`, `calibrate`, `learn --tasks`"),
    ("`profile --rank-maps`", "ranks.safetensors", "`plan --rank-maps`"),
    (
        "`plan`, `compare`, `scale -o`",
        "plan files",
        "`show`, `report`, `review`, `drift`, `verify`, `plan --from`, `plan --check`",
    ),
    ("`plan`: cost model", "h200/published, h100/convex-…", "`--model` of every command, `models show`"),
    ("`plan`: strategy", "certified, greedy, …", "`plan --strategy`, `compare --strategies`"),
    ("`models`", "names", "`--model`, `models show`, `models remove`"),
    ("`plan --export torchrec`", "plan_torchrec.py", "a training script"),
    ("`calibrate`, `tune`, `train -o`", "a model, by name or file", "`--model` of every command, `models show`"),
    ("`learn -o`", "policy.safetensors", "`plan --policy`"),
    ("`verify --json`", "measured times", "`report --measured`"),
)


def walk(folder: Path, programs: Path) -> list[tuple[str, str, float]]:
    """Run every step in a folder; return its description, its command and its seconds.

    Raises:
        AssertionError: a step prints or does something else.
    """
    write_logs(folder)
    rows, name = [], "NAME"
    for step in WAY:
        _prepare(folder, step)
        words = shlex.split(step.command.replace("NAME", name))
        command = [
            sys.executable if words[0] == "python" and programs == Path(sys.executable).parent else programs / words[0]
        ]
        begin = monotonic()
        done = subprocess.run(
            [*command, *words[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=_environment(folder),
        )
        said = done.stdout + done.stderr
        assert done.returncode == step.code, f"{step.command}: exit code {done.returncode}\n{said[-2000:]}"
        missing = [text for text in step.says if text.replace("NAME", name) not in said]
        assert not missing, f"{step.command}: does not say {missing}\n{said[-3000:]}"
        if step.names:
            printed = re.search(step.names, said)
            assert printed, f"{step.command}: prints no name like {step.names}\n{said[-3000:]}"
            name = printed[1]
        rows.append((step.what, step.command.replace(str(ROOT), "…"), monotonic() - begin))
    return rows


def _prepare(folder: Path, step: Step) -> None:
    """Write the other inputs of a step: a task for two processes with the profiled tables."""
    tables = folder / "tables.yaml"
    if "two.yaml" in step.command and not (folder / "two.yaml").exists():
        topology = "{hosts: 1, devices_per_host: 2, device: cpu, memory: 1 GB}"
        (folder / "two.yaml").write_text(f"batch_size: 16\ntopology: {topology}\ntables: {{file: tables.yaml}}\n")
        (folder / "train2.yaml").write_text(tables.read_text())


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SHARDWRIGHT_CACHE")}
    return kept | {"SHARDWRIGHT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}


def fresh(folder: Path) -> Path:
    """Build a wheel, install it with what profiling and TorchRec need into a new environment, and return the folder of its programs."""
    programs = folder / "env" / "bin"
    pip = [str(programs / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder / "dist", ROOT], check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([*pip, "install", f"{wheel}[profile,measure,torchrec]"], check=True)
    subprocess.run([*pip, "install", "--no-deps", "torchrec==1.8.0"], check=True)
    return programs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all steps; return 1 if one prints or does something else."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="from a wheel in a new environment")
    parser.add_argument("--page", action="store_true", help="write the page")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        begin = monotonic()
        programs = fresh(Path(name)) if options.fresh else Path(sys.executable).parent
        rows = [("a wheel in a new environment", "pip install", monotonic() - begin)] if options.fresh else []
        work = Path(name) / "work"
        work.mkdir()
        rows += walk(work, programs)
    cells = [(what, f"`{command}`", f"{seconds:.1f}") for what, command, seconds in rows]
    if options.page:
        from benchmarks.results_table import write_results

        tables = [
            ("Each step, and its seconds", ("step", "command", "s"), cells),
            ("Output of one command that another one takes", ("printed by", "what", "taken by"), TAKEN),
        ]
        command = f"python -m tests.stranger {'--fresh ' if options.fresh else ''}--page"
        write_results("stranger", TITLE, tables, command)
    else:
        for row in cells:
            print(" | ".join(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
