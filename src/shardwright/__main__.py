"""Entry point of `python -m shardwright` and of the program `shardwright`."""

from __future__ import annotations

import sys

try:
    from shardwright.interrupts import CODE, end_at_once, raise_outside_imports
except KeyboardInterrupt:
    sys.stderr.write("error: interrupted\n")
    sys.exit(130)


def main() -> int:
    """Run the command line. Ctrl-C ends it with one line at any time."""
    try:
        end_at_once()
        from shardwright.cli.main import main as run

        raise_outside_imports()
        return run()
    except KeyboardInterrupt:  # Ctrl-C outside the code that reports it
        sys.stderr.write("error: interrupted\n")
        return CODE
    finally:
        end_at_once()


if __name__ == "__main__":
    sys.exit(main())
