"""Show plans to people: one self-contained page, figures for papers and notebooks, and the data behind both.

Figures need matplotlib and are imported by name: `from shardwright.report import figures`.
"""

from shardwright.report.changes import Change, Marginals, marginals
from shardwright.report.document import Tier, tiered_tables, tiers_of
from shardwright.report.entry import Entry, MeasuredTimes, entry_of, not_comparable, read_measured
from shardwright.report.page import report_page, write_report
from shardwright.report.verdict import Bottleneck, Culprit, bottlenecks, idle_sentence, verdict

__all__ = [
    "Bottleneck",
    "Change",
    "Culprit",
    "Entry",
    "Marginals",
    "MeasuredTimes",
    "Tier",
    "bottlenecks",
    "entry_of",
    "idle_sentence",
    "marginals",
    "not_comparable",
    "read_measured",
    "report_page",
    "tiered_tables",
    "tiers_of",
    "verdict",
    "write_report",
]
