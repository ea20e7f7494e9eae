"""Run the tests that draw their examples (Hypothesis) on new ones, round after round, until the time is up or a test fails.

    python scripts/explore.py [--minutes 10] [--seed N] [files of tests ...] [pytest's options ...]

One seed settles a round: its examples, the order of its files, and Python's order of sets. Once the time is up, no test begins.
After a failure come the commands that repeat it, and the exit code is 1. --seed repeats a round.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
FAILED = re.compile(r"(?:FAILED|ERROR) (tests/[^\[ ]+(?:\[.*?\])?)(?: - .*)?\n?")
SEEDS = 2**32  # what PYTHONHASHSEED may be


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="no test begins after them (default: 10)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the only round")
    parser.add_argument("files", nargs="*", help="only the tests in these (default: all)")
    options, others = parser.parse_known_args(arguments)
    until, rounds, seed = time.time() + 60 * options.minutes, 0, options.seed
    while time.time() < until and not (rounds and options.seed is not None):
        seed, rounds = random.SystemRandom().randrange(SEEDS) if options.seed is None else options.seed, rounds + 1
        print(f"Round {rounds}: python scripts/explore.py --seed {seed}", flush=True)
        code, failed = run_round(seed, until, options.files or drawing_files(seed), others)
        if code:
            print("", *(f"To repeat:\n    {repeating(seed, test)}" for test in failed), sep="\n")
            return 1
    print(f"Nothing failed in {rounds} round{'s' * (rounds != 1)}; the time may have cut the last one short.")
    return 0


def drawing_files(seed: int) -> list[str]:
    """Return the files of tests that draw examples, in an order of the seed: where time is short, every file comes first at times."""
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "from hypothesis import" in path.read_text())
    random.Random(seed).shuffle(files)
    return [path.relative_to(ROOT).as_posix() for path in files]


def run_round(seed: int, until: float, files: list[str], others: list[str]) -> tuple[int, list[str]]:
    """Return pytest's exit code and the tests that failed."""
    spread = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    command = [*of_seed(seed), "-m", "hypothesis", *spread, "-q", "-rfE", *others, *files]
    settings = {
        **os.environ,
        "PYTHONHASHSEED": str(seed),
        "OMP_NUM_THREADS": "1",
        "SHARDWRIGHT_TESTS_UNTIL": str(until),
    }
    failed = []
    with subprocess.Popen(command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout or ():
            print(line, end="", flush=True)
            if found := FAILED.fullmatch(line):
                failed.append(found[1])
    return running.returncode, failed


def of_seed(seed: int) -> list[str]:
    return [sys.executable, "-m", "pytest", "--hypothesis-profile=explore", f"--hypothesis-seed={seed}"]


def repeating(seed: int, test: str) -> str:
    """Return the command that runs a test on the same examples again."""
    return f"PYTHONHASHSEED={seed} OMP_NUM_THREADS=1 {shlex.join([*of_seed(seed), test])}"


if __name__ == "__main__":
    sys.exit(main())
