"""A report as one HTML file: it needs no network and no installation, and only code of this package can run in it.

Reports and figures use few colours. People with any kind of colour vision can tell them apart; their contrast to the background is at
least 3 : 1, that of text at least 4.5 : 1. The tests compute both, and simulate the three kinds of colour blindness.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from shardwright.errors import InvalidInput
from shardwright.files import write_atomically
from shardwright.report.document import document
from shardwright.report.entry import Entry
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
    """The HTML report of one plan, or of several side by side. The other plans are compared with the first.

    A Content-Security-Policy allows only the page's own style and script, by their hashes. No request can leave the page.

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
    """Write a report atomically, and return its size in bytes."""
    content = report_page(entries).encode("utf-8")
    write_atomically(path, content)
    return len(content)


def _embedded(data: dict[str, Any]) -> str:
    """JSON text that cannot end its HTML element, with any names of tables."""
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
    """The text that readers without scripts see."""
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


KINDS = ("table_wise", "column_wise", "row_wise", "data_parallel", "table_row_wise", "grid", "tiered")
MEMORY_PARTS = ("weights", "optimizer", "buffers")


@dataclass(frozen=True)
class Palette:
    """One theme of colours, each as "#rrggbb".

    Attributes:
        page: background of the page.
        panel: background of figures.
        ink: text.
        muted: secondary text.
        line: borders and grid lines.
        accent: links, focus and the selection.
        warn: values over a limit, or off.
        phases: the four phases, in the order of `sharding.PHASES`.
        memory: weights, optimizer state, buffers.
        kinds: sharding types, in the order of `KINDS`.
        ramp: scale from nothing to the most.
    """

    page: str
    panel: str
    ink: str
    muted: str
    line: str
    accent: str
    warn: str
    phases: tuple[str, ...]
    memory: tuple[str, ...]
    kinds: tuple[str, ...]
    ramp: tuple[str, ...]


LIGHT = Palette(
    page="#f6f6f3",
    panel="#ffffff",
    ink="#1c2230",
    muted="#555e6e",
    line="#deded8",
    accent="#1a5fb4",
    warn="#a8320f",
    phases=("#4d8fd6", "#cb8106", "#a04410", "#1b3a66"),
    memory=("#0f5c5c", "#4fa08b", "#a8892c"),
    kinds=("#1b3a66", "#4d8fd6", "#1f9e77", "#cb8106", "#a04410", "#b15fa6", "#6b7280"),
    ramp=("#dce9f5", "#9cc3e6", "#4d8fd6", "#265a99", "#10294d"),
)
DARK = Palette(
    page="#12161d",
    panel="#1a2029",
    ink="#e6e9ef",
    muted="#a3adbd",
    line="#343d4b",
    accent="#7fb3f0",
    warn="#f08a64",
    phases=("#8ec1f5", "#f3bd5a", "#d0622f", "#4a7fd0"),
    memory=("#2f8f8a", "#8fdcc4", "#d6a93f"),
    kinds=("#4a7fd0", "#8ec1f5", "#45c49b", "#f3bd5a", "#d0622f", "#d48ccb", "#c6ccd6"),
    ramp=("#26384f", "#2f5f96", "#4d8fd6", "#8ec1f5", "#dff0ff"),
)


def css_variables(palette: Palette) -> str:
    """The palette as declarations of CSS variables."""
    single = {name: getattr(palette, name) for name in ("page", "panel", "ink", "muted", "line", "accent", "warn")}
    lists = {"phase": palette.phases, "memory": palette.memory, "kind": palette.kinds, "ramp": palette.ramp}
    numbered = {f"{name}-{index}": colour for name, colours in lists.items() for index, colour in enumerate(colours)}
    return " ".join(f"--{name}: {colour};" for name, colour in (single | numbered).items())
