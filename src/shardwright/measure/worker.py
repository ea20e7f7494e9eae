"""The measuring process: reads requests from standard input and answers on standard output, one JSON document a line.

It is a process of its own so that measuring runs on one pinned core with huge pages and one thread, whatever its user does, and so that a
kernel that crashes takes nothing else with it. It ends when its standard input closes, so it never outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from typing import IO, Any

from shardwright.errors import ShardwrightError
from shardwright.measure.cores import ReservedCore
from shardwright.measure.hardware import import_torch
from shardwright.measure.session import Session
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.wire import decode_work


def main() -> None:
    """Serve requests until standard input ends. The one argument is a JSON document: see `worker_client.WorkerOptions`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    options = json.loads(sys.argv[1])
    replies = _take_over_stdout()
    core = ReservedCore() if options["device"] == "cpu" else None  # kept, and so reserved, as long as the process lives
    try:
        session = _start(options, core)
    except ShardwrightError as error:
        _reply(replies, {"error": str(error)})
        return
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        _reply(replies, _answer(session, json.loads(line)))


def _start(options: dict[str, Any], core: ReservedCore | None) -> Session:
    torch = import_torch()
    if core is not None:
        core.pin()
        torch.set_num_threads(1)
    policy = TimingPolicy(**options["policy"]) if options["policy"] else None
    return Session(options["device"], options["backend"], options["arena_bytes"], policy)


def _answer(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    try:
        works = [decode_work(work) for work in request["works"]]
        return asdict(session.visit(works, request["seeds"], request["optimizer"]))
    except ShardwrightError as error:
        return {"error": str(error)}


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
