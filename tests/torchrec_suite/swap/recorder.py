"""A plugin of pytest that writes what became of each test to the file `SUITE_OUTCOMES`, as it goes: a crash or the time limit leaves the rest."""

from __future__ import annotations

import json
import os
from typing import Any


def pytest_runtest_logreport(report: Any) -> None:
    """One line for each stage of a test that did not just pass, and for each test that ran."""
    if report.when == "call" or report.outcome != "passed":
        said = str(report.longrepr or "")
        with open(os.environ["SUITE_OUTCOMES"], "a") as file:
            file.write(json.dumps({"test": report.nodeid, "outcome": report.outcome, "said": said, "s": report.duration}) + "\n")
