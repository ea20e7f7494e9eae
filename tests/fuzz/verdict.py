"""The rules that every case must keep."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fuzz.cases import Case
from tests.fuzz.damage import MARKUP
from tests.fuzz.legal import broken_rules
from tests.fuzz.material import SHORT
from tests.fuzz.process import Ran

MOST_ERROR = 2000  # characters of the error
MOST_NOTES = 20_000  # bytes of everything on stderr
_LARGE = 1 << 26
Snapshot = dict[str, str]


def snapshot(folder: Path) -> Snapshot:
    """Everything in a folder and below it, by path: the digest of a file, or the kind of anything else."""
    states: Snapshot = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            states[str(path.relative_to(folder))] = _state(path)
    return states


def _state(path: Path) -> str:
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        return f"link to {path.readlink()}"
    if not stat.S_ISREG(info.st_mode):
        return stat.filemode(info.st_mode)[0]
    if info.st_size > _LARGE:
        return f"{info.st_size} bytes"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def findings(case: Case, ran: Ran, before: Snapshot) -> list[str]:
    """The faults of a case; usually none."""
    return [*_end(case, ran), *_printed(case, ran), *_files(case, ran, before)]


def _end(case: Case, ran: Ran) -> Iterator[str]:
    sent = case.limits.signals[0] if case.limits.signals else None
    killed = sent == signal.SIGKILL and ran.code == -signal.SIGKILL
    codes = (0, 1, 2, 3) if case.command == "drift" else (0, 1, 2)
    if ran.hung:
        yield f"hangs: killed after {case.limits.seconds:.0f} s"
    elif ran.memory > case.limits.memory:
        yield f"takes {ran.memory >> 20} MB"
    elif ran.code not in codes and not killed and not (sent == signal.SIGINT and ran.code in (130, -signal.SIGINT)):
        yield f"exit code {ran.code}"
    if ran.left and not killed:
        yield "leaves a process behind"


def _printed(case: Case, ran: Ran) -> Iterator[str]:
    out, err = ran.out.decode("utf-8", "replace"), ran.err.decode("utf-8", "replace")
    if "Traceback (most" in err and (not case.interpreter or f"{os.sep}shardwright{os.sep}" in err):
        places = re.findall(r'File ".*?/shardwright/(.*?)", line (\d+)', err) or [("?", "?")]
        yield f"traceback at {':'.join(places[-1])}: {err.strip().splitlines()[-1][:200]}"
        return
    if ran.code < 0 or case.interpreter:
        return
    if len(err) > MOST_NOTES:
        yield f"prints {len(err)} characters on stderr"
    shown = out if not any(name.startswith("/dev/") for name in case.argv) else ""
    odd = next((character for character in err + shown if not character.isprintable() and character != "\n"), None)
    if odd is not None:
        yield f"control character {odd!r} on {'stderr' if odd in err else 'stdout'}"
    errors = [line for line in err.splitlines() if line.startswith("error:")]
    if ran.code in (1, 2) and case.argv and case.limits.stdout == "pipe":
        if len(errors) != 1:
            yield f"{len(errors)} error lines"
        elif len(errors[0]) > MOST_ERROR:
            yield f"an error of {len(errors[0])} characters"
        elif not _named(case, errors[0]):
            yield f"names no file or option at fault: {errors[0][:200]}"
    if "--json" in case.argv and case.command != "(none)" and case.limits.stdout == "pipe" and shown:
        try:
            json.loads(shown, parse_constant=int)  # NaN and Infinity are no JSON
        except ValueError:
            yield "--json prints something else than one JSON document"


def _named(case: Case, error: str) -> bool:
    """Whether an error names a file of a damaged kind (of any kind if none is damaged), an option, an argument or an output."""
    harmed = {file.kind for file in case.inputs.values() if file.done} or {file.kind for file in case.inputs.values()}
    files = [file.word for file in case.inputs.values() if file.kind in harmed | {"companion"}]
    options = [text.partition("=")[0] for text in case.argv if text[:2] == "--" or "=" in text]
    fields = [option.lstrip("-").replace("-", "_") for option in options if len(option) > 2]
    ends = ("",) if case.mode == "options" else (":", " '", " is ", " of ")
    parts = [f"{part}{end}" for part in (*fields, *case.argv[1:]) for end in ends]
    words = [
        *files,
        *options,
        *parts,
        *case.words,
        "strategy '",
        "Option '",
        "(see: ",
    ]
    return not case.inputs or any(word in error for word in words if len(word) > 1)


def _files(case: Case, ran: Ran, before: Snapshot) -> Iterator[str]:
    after = snapshot(case.folder)
    killed = ran.code == -signal.SIGKILL
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path):
            continue
        if path.rpartition("/")[2].startswith(".shardwright-"):
            if not killed:
                yield f"leaves {path} behind"
            continue
        kind = _kind(case, path)
        if kind is None:
            yield f"{'changes' if path in before else 'makes'} {path!r}, which is not its to write"
        elif path in before and path not in after:
            yield f"removes {path!r}"
        elif ran.code == 2 and kind not in ("folder", "store", "checkpoint"):  # those are written on the way
            yield f"writes {path!r} and exits with 2"
        elif (why := _broken(case, case.folder / path, kind)) is not None:
            yield f"writes {path!r}, which is no whole {kind}: {why}"
    if ran.code == 0 and case.argv and "--help" not in case.argv:
        for path, kind in case.outputs.items():
            if kind != "folder" and not os.path.lexists(case.folder / path) and path in case.argv:
                yield f"exits with 0 without writing {path!r}"
    if case.legal is not None and ran.code == 0:
        plan = json.loads((case.folder / next(iter(case.outputs))).read_text())
        yield from broken_rules(case.legal, plan)


def _kind(case: Case, path: str) -> str | None:
    """The kind of file at a path that the case may write to; None for other paths."""
    if path == "nowhere" or path[0] == "-":  # a folder that is made, where a link leads, or an option taken for a name
        return "folder"
    for name, kind in case.outputs.items():
        stem = str(Path(name).with_name(f"{Path(name).stem}.ranks.safetensors")) if name.strip("/.") else ""
        if path == name.rstrip("/"):
            return kind
        if kind == "plan" and path == stem:
            return "ranks"
        if kind in ("folder", "store") and path.startswith(f"{name.rstrip('/')}/"):
            return "file of a folder"
    for name, file in case.inputs.items():
        written = (file.kind in SHORT and "--checkpoint" in case.argv) or case.command == "collect"
        if written and (path in (name, f"{name}-aside") or path.startswith(f"{name}/")):
            return "checkpoint" if file.kind in SHORT else "file of a folder"
    return None


def _broken(case: Case, path: Path, kind: str) -> str | None:
    """Why a file that was written does not load again; None if it does."""
    from shardwright.cost import load_model
    from shardwright.learned.checkpoints import load_checkpoint
    from shardwright.learned.policy_files import load_policy
    from shardwright.sharding import Plan
    from shardwright.sharding.rank_map_files import load_rank_maps
    from shardwright.task.files import load_tables

    learner = next((word for word in case.argv if word in ("autoshard", "dreamshard")), "")
    readers: dict[str, Callable[[Path], object]] = {
        "plan": Plan.load, "tables": load_tables, "ranks": load_rank_maps, "model": load_model, "page": _whole_page,
        "policy": lambda policy: load_policy(policy, learner), "checkpoint": load_checkpoint,
    }  # fmt: skip
    if not path.is_file():
        return None
    try:
        readers.get(kind, _whole_file)(path)
    except Exception as error:
        return str(error)[:200]
    return None


def _whole_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if not text.rstrip().endswith("</html>"):
        raise ValueError("its end is missing")
    if MARKUP in text:
        raise ValueError("it holds markup of an input as it was")


def _whole_file(path: Path) -> None:
    """Check that a file in a folder of results is whole."""
    if path.suffix == ".json":
        json.loads(path.read_text())
    elif path.suffix == ".parquet" and path.read_bytes()[-4:] != b"PAR1":
        raise ValueError("its end is missing")
