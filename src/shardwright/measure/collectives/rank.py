"""The program of one rank: reads samples from standard input, one JSON document a line, and measures them with the other ranks.

Rank 0 answers each one on standard output. A rank ends when its standard input closes; one that is stuck then ends itself some time
after its sample's timeout, so that none outlives the process that started it for long.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from shardwright.errors import ShardwrightError
from shardwright.measure.collectives.membership import joined_group
from shardwright.measure.collectives.sampling import CollectiveSample
from shardwright.measure.collectives.timing import Member, RunPolicy

_GRACE_S = 10.0  # after the timeout, by which the process that started this one should have ended it


Answer = Callable[[Member, dict[str, Any], RunPolicy], dict[str, Any]]


def main(program: Answer | None = None) -> None:
    """Serve requests until standard input ends. The one argument of the process is a JSON document: see `group.RankGroup`.

    Args:
        program: what every rank does with a request, and what rank 0 replies; by default it is a sample to measure.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    options = json.loads(sys.argv[1])
    replies = _take_over_stdout()
    try:
        _serve(options, replies, program or answer)
    except ShardwrightError as error:
        _reply(replies, {"error": str(error)})
        sys.exit(1)


def _serve(options: dict[str, Any], replies: IO[str], program: Answer) -> None:
    rank, world, longest = options["rank"], options["world"], options["timeout_s"] + _GRACE_S
    policy = RunPolicy(**options["policy"])
    with joined_group(
        options["device"],
        rank,
        world,
        local_rank=rank,
        local_world=world,
        timeout_s=longest,
        meeting_file=Path(options["meeting_file"]),
    ) as member:
        if rank == 0:
            _reply(replies, {"ready": True})
        for line in sys.stdin:
            faulthandler.dump_traceback_later(longest, exit=True)
            reply = program(member, json.loads(line), policy)
            faulthandler.cancel_dump_traceback_later()
            if rank == 0:
                _reply(replies, reply)


def answer(member: Member, request: dict[str, Any], policy: RunPolicy) -> dict[str, Any]:
    """What rank 0 replies to a sample."""
    sample = CollectiveSample(**request)
    return asdict(member.measure(sample, policy))


def _take_over_stdout() -> IO[str]:
    """The original standard output, for replies only; whatever libraries print goes to standard error instead."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _reply(replies: IO[str], document: dict[str, Any]) -> None:
    replies.write(json.dumps(document) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
