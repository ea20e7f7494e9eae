"""A stranger's way from logs to training; `python -m tests.stranger --fresh` walks it from a wheel."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torchrec", reason="needs TorchRec")

pytestmark = [pytest.mark.slow, pytest.mark.torchrec]


def test_every_step_of_a_stranger_does_what_it_says(tmp_path):
    from tests.stranger.__main__ import WAY, walk

    assert len(walk(tmp_path, Path(sys.executable).parent)) == len(WAY)
