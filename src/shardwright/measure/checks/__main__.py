"""Check a machine before collecting: `python -m shardwright.measure.checks -o FOLDER --device cuda`.

Exit code 1 where something is wrong: then nothing should be collected.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shardwright.errors import ShardwrightError, printable
from shardwright.measure.backend import BACKEND_HELP
from shardwright.measure.checks.run import check_machine


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m shardwright.measure.checks", description="Check this machine.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the samples, for checks.json")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", metavar="NAME", help=BACKEND_HELP)
    parser.add_argument("--seed", type=int, help="of the kernels' inputs (default: a new one)")
    options = parser.parse_args(arguments)
    try:
        wrong = check_machine(options.output, options.device, options.backend, seed=options.seed)
    except ShardwrightError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
