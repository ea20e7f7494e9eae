"""A plugin of pytest that writes each test's outcome to the file `SUITE_OUTCOMES` at once, so that a crash keeps earlier ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def pytest_runtest_logreport(report: Any) -> None:
    """One line for each test that ran, and for each stage of a test that did not pass; `from` and `to` are when the stage ran."""
    if report.when == "call" or report.outcome != "passed":
        said = "" if report.outcome == "passed" else str(report.longrepr)
        line = {"test": report.nodeid, "outcome": report.outcome, "said": said, "from": report.start, "to": report.stop}
        with Path(os.environ["SUITE_OUTCOMES"]).open("a") as file:
            file.write(json.dumps(line) + "\n")
