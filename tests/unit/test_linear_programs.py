"""Linear programs: time limits, and the destination of the solver's own output."""

import os
import threading
import time

import numpy as np
import pytest

from shardwright import linear_programs
from shardwright.linear_programs import Program


def test_a_program_that_is_not_built_in_time_ends():
    late = Program(time.monotonic())
    with pytest.raises(TimeoutError):
        late.row(late.variables([1.0]), 1.0)


def test_a_relaxed_program_without_time_finds_nothing():
    rng, relaxed = np.random.default_rng(0), Program()
    columns = relaxed.variables(np.ones(200), cost=-rng.random(200))
    for _ in range(200):
        relaxed.row(columns, rng.random(200), high=20.0)
    assert relaxed.relaxed(600.0).objective == relaxed.relaxed().objective > -np.inf
    solution = relaxed.relaxed(0.0)
    assert solution.values is None
    assert solution.bound == -np.inf


def test_the_solvers_output_does_not_reach_standard_output(capfd):
    check_redirected(capfd)


def check_redirected(capfd):
    with linear_programs._STDOUT_ON_STDERR:
        os.write(1, b"diagnostics of the solver")
    os.write(1, b"a document")
    printed = capfd.readouterr()
    assert printed.out == "a document"
    assert printed.err == "diagnostics of the solver"


def test_searches_that_overlap_in_threads_leave_standard_output_as_it_was(capfd):
    """The first to begin is the first to end."""
    second_began, first_ended = threading.Event(), threading.Event()

    def second():
        with linear_programs._STDOUT_ON_STDERR:
            second_began.set()
            assert first_ended.wait(60)
            os.write(1, b"still diagnostics")

    thread = threading.Thread(target=second)
    with linear_programs._STDOUT_ON_STDERR:
        thread.start()
        assert second_began.wait(60)
    first_ended.set()
    thread.join(60)
    os.write(1, b"a document")
    printed = capfd.readouterr()
    assert printed.out == "a document"
    assert printed.err == "still diagnostics"


def test_output_that_cannot_be_redirected_does_not_count_as_redirected(capfd, monkeypatch):
    def refuse(*_):
        raise OSError("no file descriptors left")

    with monkeypatch.context() as patch:
        patch.setattr(linear_programs.os, "dup2", refuse)
        with pytest.raises(OSError, match="left"), linear_programs._STDOUT_ON_STDERR:
            pass
    check_redirected(capfd)
