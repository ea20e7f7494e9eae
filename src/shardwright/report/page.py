"""A report as one HTML file: no network, nothing to install, and nothing in it that was not written here can run."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from shardwright.errors import InvalidInput
from shardwright.files import write_atomically
from shardwright.report.document import document
from shardwright.report.entry import Entry
from shardwright.report.palette import DARK, LIGHT, css_variables
from shardwright.report.verdict import verdict

_SCRIPTS = (
    "dom.js",
    "format.js",
    "tip.js",
    "frame.js",
    "columns.js",
    "lines.js",
    "plan.js",
    "matrix_draw.js",
    "matrix.js",
    "summary.js",
    "devices.js",
    "tables.js",
    "compare.js",
    "links.js",
    "tuning.js",
    "rules.js",
    "draft.js",
    "board.js",
    "whatif.js",
    "main.js",
)
_UNSAFE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def report_page(entries: Sequence[Entry]) -> str:
    """The report of one plan, or of several side by side; the first is the one that others are compared with.

    A Content-Security-Policy allows the page's own style and script, by their hashes, and nothing else: no request can leave it.

    Raises:
        InvalidInput: there is no plan, or a figure of one is not finite.
    """
    if not entries:
        raise InvalidInput("a report needs at least one plan; name a plan file")
    script = "\n".join(["(() => {", '"use strict";', *(_asset(name) for name in _SCRIPTS), "})();"])
    style = _style()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    names = " · ".join(entry.name for entry in entries)
    return Template(_asset("page.html")).substitute(
        policy=policy,
        title=html.escape(f"{names} – sharding plan"),
        style=style,
        summary=_summary(entries),
        data=_embedded(document(entries)),
        script=script,
    )


def write_report(entries: Sequence[Entry], path: str | Path) -> int:
    """Write a report; atomic. Returns its size in bytes."""
    content = report_page(entries).encode("utf-8")
    write_atomically(path, content)
    return len(content)


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in, whatever the names of tables are."""
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise InvalidInput(
            "a figure of the report is NaN or infinite, must be finite; plan again, or check the costs"
        ) from None
    return text.translate(_UNSAFE)


def _style() -> str:
    light, dark = css_variables(LIGHT), css_variables(DARK)
    themes = (
        f":root {{ color-scheme: light; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme]) {{ color-scheme: dark; {dark} }} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{ color-scheme: dark; {dark} }} }}\n"
    )
    return themes + _asset("page.css")


def _summary(entries: Sequence[Entry]) -> str:
    """What readers without scripts see."""
    lines = []
    for entry in entries:
        plan = entry.plan
        bound = f", bound {plan.bound_ms:.3f} ms" if plan.bound_ms is not None else ""
        lines.append(
            f"<li>{html.escape(f'{entry.name}: step {entry.cost.step_ms:.3f} ms{bound}. {verdict(entry)}')}</li>"
        )
    return "".join(lines)


def _asset(name: str) -> str:
    return (files("shardwright.report") / "assets" / name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
