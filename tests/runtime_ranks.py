"""Ranks of a job for tests: gloo processes on the loopback device that run functions one after another."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

_START_S = 120.0


class Ranks:
    """Running ranks."""

    def __init__(self, count: int, timeout_s: float) -> None:
        context = multiprocessing.get_context("forkserver")  # torch is loaded once for all ranks of all tests
        context.set_forkserver_preload(["torch", "torch.distributed", "shardwright.runtime", "tests.runtime_cases"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, count, port, timeout_s, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.run(_hello, wait_s=_START_S)

    def run(self, function: Callable[..., Any], *args: Any, wait_s: float = 60.0) -> list[Any]:
        """The results of `function(rank, *args)` on every rank; AssertionError with the trace of one that failed."""
        answers = self.outcomes(function, *args, wait_s=wait_s)
        failed = [(rank, text) for rank, (good, text) in enumerate(answers) if not good]
        assert not failed, f"rank {failed[0][0]}:\n{failed[0][1]}"
        return [value for _, value in answers]

    def outcomes(self, function: Callable[..., Any], *args: Any, wait_s: float = 60.0) -> list[tuple[bool, Any]]:
        """(True, result) or (False, trace) of every rank; a rank that died: (False, "died")."""
        end = monotonic() + wait_s
        for pipe in self.pipes:
            pipe.send((function, args))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(max(end - monotonic(), 0.1)), f"rank {rank} did not answer within {wait_s} s"
            try:
                answers.append(pipe.recv())
            except EOFError:
                answers.append((False, "died"))
        return answers

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(10)


@contextmanager
def started(count: int, timeout_s: float = 30.0) -> Iterator[Ranks]:
    ranks = Ranks(count, timeout_s)
    try:
        yield ranks
    finally:
        ranks.close()


def _hello(rank: int) -> int:
    return rank


def _serve(rank: int, count: int, port: int, timeout_s: float, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=timeout_s),
    )
    while True:
        function, args = pipe.recv()
        try:
            pipe.send((True, function(rank, *args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
