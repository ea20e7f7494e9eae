"""The colours of reports and figures: few, told apart by people with any kind of colour vision, at least 3 : 1 against the ground.

Text colours have at least 4.5 : 1. The tests compute both, and simulate the three kinds of colour blindness.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("table_wise", "column_wise", "row_wise", "data_parallel", "table_row_wise", "grid", "tiered")
MEMORY_PARTS = ("weights", "optimizer", "buffers")


@dataclass(frozen=True)
class Palette:
    """One theme, colours as "#rrggbb".

    Attributes:
        page: behind everything.
        panel: behind figures.
        ink: text.
        muted: secondary text.
        line: borders and grid lines.
        accent: links, focus, and what is chosen.
        warn: what is over a limit, or off.
        phases: the four phases, in the order of `sharding.PHASES`.
        memory: weights, optimizer state, buffers.
        kinds: sharding types, in the order of `KINDS`.
        ramp: from nothing to most.
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
