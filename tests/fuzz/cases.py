"""A case: a command line and its files, drawn from a number and a seed."""

from __future__ import annotations

import json
import re
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.damage import MARKUP, STEERING, harm, misplace
from tests.fuzz.legal import odd_task
from tests.fuzz.material import COMPANIONS, KINDS, SHORT
from tests.fuzz.process import Limits

FAST = "greedy/random/size/lookup/row_wise/table_row_wise/column_wise/table_wise/data_parallel"
SEARCHES = "auto/certified/flexshard/two_tiers/neuroshard/autoshard/dreamshard/dreamshard+/exact"
LINES = (
    (18, f"plan @task --strategy={FAST} --time-limit=0.2/0 -o=>plan.json?80 --model=@model?30 --seed=1/7?20 --policy=@policy?5"
         " --from=@plan?5"),
    (7, f"plan @task --strategy={SEARCHES} --time-limit=0.1/0.2/0 -o=>plan.yaml?80 --model=@model?20 --move-cost=0/inf?5"),
    (4, "plan @ranked --strategy==two_tiers --rank-maps=@ranks --time-limit==0.1 -o=>plan.json?80"),
    (4, "plan @task --strategy=dreamshard/autoshard --policy=@policy --time-limit==0.1 -o=>plan?80"),
    (4, "plan @task --strategy==certified --from=@plan --move-cost=0/1/inf --time-limit==0.1 -o=>plan.json?80"),
    (20, "profile @log @log?20 -o=>tables.yaml?70 --rank-maps=>ranks.safetensors?40 --column=user/name/history/none?20"
         " --exclude=item/none?20 --sequence=history/item?20 --pooled=history?10 --list-separator=;/|/,/ab?20 --dim=8/64?20"
         " --rows=distinct/max_id?20 --rank-map-rows=1/9?10"),
    (5, "review @plan -o=>plan.json?70 --move-cost=0/1/inf?30 --time-limit=0.1/0 --model=@model?20 --seed=1?20"),
    (2, "review @sharding --task=@task?80 -o=>sharding.json?70 --time-limit==0.1"),
    (4, "scale @task --hosts=1/1,2/2,1,1/x --devices=h100-8/h100-8,a100-8/x?20 --batch=64/0?20 --batch-per-device=8/0?10"
        " --dense-ms=1/nan?20 --overlap?20 --price=cpu=1/h100=2.5/x?30 -o=>folder?50"
        " --time-limit=0.05/0 --model=@model?20"),
    (6, "drift @plan @log @log?10 -o=>plan.json?60 --worth-it=0/0.5/1?30 --move-cost=0/1?20 --sequence=history?10 --time-limit==0.1"
        " --list-separator=;/ab?10 --model=@model?20"),
    (2, "drift @plan @tables -o=>plan.json?60 --time-limit==0.1 --worth-it=0.1?30"),
    (2, "plan --check=@plan --model=@model?30 --json?20"),
    (7, "show @plan --tables=0/3/1000?30 --model=@model?30"),
    (10, "report @plan @plan?40 @plan?20 -o=>page.html --model=@model?20 --measured=@measured?30"),
    (6, "compare @task --strategies=greedy,random/dim,certified/row_wise,column_wise/greedy,,x --time-limit=0.1 -o=>folder?50"
        " --model=@model?20"),
    (4, "verify @plan --rounds==1 --task=@task?40 --tolerance=0.2/1000/0?20 --backend=embedding_bag/no.such:Thing/os:system?30"
        " --device=cpu/cuda?9"),
    (6, "train @store @store?30 --epochs==1 -o=>model.safetensors --network=shardwright/neuroshard?20 --head=mlp/convex?20 --seed=3?20"
        " --allow-other-hardware?20"),
    *((3, f"learn {name} --tasks=@tasks {' '.join(SHORT[name])} -o=>policy.safetensors --checkpoint=@{name}?50 --model=@model?20"
          " --option=episodes=2/policy_rate=0.1/no=1/=?20") for name in SHORT),
    (0.4, "collect -o=>store -n==1 --batch-size==8 --memory==20MB --seconds==3 --backend==embedding_bag"),
    (0.8, "collect -o=@store -n==1 --batch-size==8 --memory=20MB/1kB/lots --seconds==3"),
    (2, "collect -o=>store -n==1 --space=huge/usual --optimizer=sgd/none --pool=no --sequence-share=2/0 --world=2?50 --seconds==3"),
    (0.1, "collect --collectives -o=>store -n==1 --world==2 --batch-size==8"),
    (1, "demo --quick -o=>folder --model=@ranks --seed=1?30"),  # only with bad input, which fails at once: a demo takes minutes
    (1, "--help?20 --version?20 plan?30 no-such?30 --json?20"),
)  # fmt: skip
"""How often each command line is drawn, and its parts: `@kind` is a file, `>name` a result of the kind its name begins with, a/b/c are
values of which one is drawn (or an odd one, unless `==`), and `?20` says that the part is there in 20 of 100 cases."""

MODES = {"files": 50, "places": 18, "options": 12, "legal": 14, "valid": 3, "signal": 6, "interpreter": 1}
"""The odd part of a case, by frequency: its files, the places of its files, its options, its task, nothing, or the way it ends or runs."""

NAMES = (" ", "é☃", STEERING, "\u202egnp", "a\nb", "%s{}", "'\"`$(ls)", "x" * 190, MARKUP.replace("/", "|"), "\udcff")
"""Odd parts of file names; each name also has a word by which a message names it."""

VALUES = (
    "-1", "0", "nan", "inf", "-inf", "1e309", "9" * 30, "abc", "", "0x10", "1_0", "٣", STEERING, "1e-300", "2.5", "--",
    "x" * 3000,
)  # fmt: skip
TARGETS = (
    "nowhere", "folder", "input", "/dev/stdout", "/dev/null", "/dev/full", "loop", "dangling", "long", "old", "",
    "slash",
)  # fmt: skip
LONGER = {"--time-limit": "3", "-n": "1000"}  # for commands that a signal ends
_PART = re.compile(r"(?P<flag>-[\w-]+)?(?P<sign>==?)?(?P<value>.*?)(\?(?P<share>\d+))?")


@dataclass(frozen=True)
class Input:
    """A file or folder that a case reads: its kind, its damage ("" for none), and a word by which a message names it."""

    kind: str
    done: str
    word: str


@dataclass
class Case:
    """A command line, the files in its folder, and the expectations.

    Attributes:
        inputs: files and folders that it reads, by path.
        outputs: files and folders that it may write, by path: their kind.
        words: other words that an error may name: parts of outputs.
        legal: the content of its task file, whose plan is to be checked.
        interpreter: whether it runs in an interpreter of its own.
    """

    number: int
    folder: Path
    mode: str = ""
    argv: list[str] = field(default_factory=list)
    inputs: dict[str, Input] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    legal: dict[str, Any] | None = None
    interpreter: bool = False
    limits: Limits = field(default_factory=Limits)

    @property
    def command(self) -> str:
        return next((text for text in self.argv[:1] if text.isalpha()), "(none)")


def draw_case(number: int, seed: int, material: Path, folder: Path) -> Case:
    """Make a case, with its files, in an empty folder."""
    rng = Random(f"{seed}/{number}")
    case = Case(number, folder, rng.choices(list(MODES), list(MODES.values()))[0])
    draw = _Draw(rng, case, material)
    if case.mode == "legal":
        draw.legal()
    else:
        draw.line(rng.choices([line for _, line in LINES], [share for share, _ in LINES])[0])
    if rng.random() < 0.3:
        case.argv.insert(1, "--json")  # not at the end, where an option that lacks its value would take it
    if case.mode in ("signal", "interpreter"):
        kind = signal.SIGKILL if rng.random() < 0.3 else signal.SIGINT
        case.interpreter = case.mode == "interpreter"
        case.limits = Limits(signals=(kind, 1.5 * rng.random() ** (1 if case.interpreter else 3)))
    elif "--collectives" in case.argv:
        case.limits = Limits(seconds=90.0)  # they start processes
    elif rng.random() < 0.02:
        case.limits = Limits(stdout=rng.choice(["closed", "full"]))
    return case


@dataclass
class _Draw:
    """Draws the parts of a command line, and puts its files into the case's folder."""

    rng: Random
    case: Case
    material: Path

    def line(self, text: str) -> None:
        for part in text.split():
            match = _PART.fullmatch(part)
            assert match is not None
            if self.rng.random() * 100 < int(match["share"] or 100):
                self.case.argv += self._part(
                    match["flag"], match["value"], odd=self.case.mode == "options" and match["sign"] != "=="
                )

    def legal(self) -> None:
        self.case.legal = odd_task(self.rng)
        (self.case.folder / "task.json").write_text(json.dumps(self.case.legal))
        self.case.inputs["task.json"] = Input("task", "", "task.json")
        strategies = f"{FAST}/{SEARCHES}/{SEARCHES}"
        self.line(f"plan task.json --strategy={strategies} --time-limit=0/0.1/0.3 -o=>plan.json")

    def _part(self, flag: str | None, value: str, odd: bool) -> list[str]:
        if value[:1] == "@":
            value = self._file(value[1:])
        elif value[:1] == ">":
            value = self._target(*value[1:].partition(".")[::2])
        elif flag is not None and value:
            value = self.rng.choice(VALUES if odd and self.rng.random() < 0.4 else value.split("/"))
            value = LONGER.get(flag, value) if self.case.mode == "signal" else value
        elif flag is not None:
            return [flag]
        given = [flag, value] if flag else [value]
        if odd and flag and self.rng.random() < 0.1:
            return self.rng.choice([given * 2, given[:1], [f"{flag}x", value]])
        return given

    def _file(self, kind: str) -> str:
        """A file of a kind, damaged or misplaced with a probability, under a name that may be odd."""
        source, mode, done = self.material / self.rng.choice(KINDS[kind]), self.case.mode, ""
        if mode == "files" and self.rng.random() < 0.08:  # some other kind, whole
            source, done = self.material / self.rng.choice(self.rng.choice(list(KINDS.values()))), "other"
        path = self.case.folder / self._name(f"in{len(self.case.inputs)}", source.suffix)
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, path)
        self._companion(source)
        if mode == "files" and not done and self.rng.random() < 0.8:
            done = harm(self.rng, path, kind)
        elif mode == "places" and self.rng.random() < 0.5:
            done = misplace(self.rng, path)
        done = done or "name" * ("\udcff" in path.name)
        self.case.inputs[path.name] = Input(kind, done, path.name[:3])
        return path.name

    def _companion(self, source: Path) -> None:
        """Put a file that another one names beside it."""
        name = COMPANIONS.get(source.name)
        if name is not None:
            copy = Path(shutil.copyfile(self.material / name, self.case.folder / name))
            harmed = self.case.mode == "files" and self.rng.random() < 0.3
            done = harm(self.rng, copy, "companion") if harmed else ""
            self.case.inputs[name] = Input("companion", done, name)

    def _target(self, kind: str, suffix: str) -> str:
        """A path for a result."""
        word = f"out{len(self.case.outputs)}"
        text = self._name(word, f".{suffix}" if suffix else "")
        way = (
            self.rng.choice(TARGETS)
            if self.case.mode == "places" and self.rng.random() < 0.5
            else "old" * (self.rng.random() < 0.1)
        )
        place = self.case.folder / text
        if way == "old" and suffix:
            place.write_text("old")
        elif way == "folder":
            place.mkdir()
        elif way in ("loop", "dangling"):
            place.symlink_to(text if way == "loop" else "new")
            self.case.outputs |= {"new": kind} if way == "dangling" else {}
        elif way:
            names = {
                "nowhere": f"nowhere/{text}",
                "long": f"out{'y' * 253}",
                "slash": f"{text}/",
                "input": next(iter(self.case.inputs), text),
            }
            text = names.get(way, text if way == "old" else way)
        if way != "input" and way[:1] != "/" and not (way == "folder" and suffix):
            self.case.outputs[text] = kind
        self.case.words += [word, text[:20]]
        return text

    def _name(self, word: str, end: str) -> str:
        odd = self.rng.choice(NAMES) if self.case.mode != "legal" and self.rng.random() < 0.15 else ""
        return f"{word}{odd}{end}"
