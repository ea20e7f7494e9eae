"""`python -m shardwright`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; Ctrl-C while its parts are still being imported ends it with one line too."""
    try:
        from shardwright.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
