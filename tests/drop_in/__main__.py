"""Try every situation with both planners: see the package."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence

from benchmarks.results_table import write_results

from tests.drop_in.heard import HEARD
from tests.drop_in.refused import REFUSED
from tests.drop_in.situation import PLANNED, Situation, outcome, tables_by_name
from tests.drop_in.trained import TRAINED, differences

TITLE = "Situations of TorchRec's users, with TorchRec's planner and with ours"
HEADS = ("situation", "TorchRec's planner", "ours", "remark")
UNEXPECTED = "UNEXPECTED"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if an outcome differs from its row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train too")
    parser.add_argument("--page", action="store_true", help="train too, and write the page")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    tables = [
        ("Requests that TorchRec's planner refuses, and similar ones", HEADS, list(_planned(REFUSED))),
        (
            "Options other than sharding types: every plan obeys the option, or a warning states that it has no effect",
            HEADS,
            list(_planned(HEARD)),
        ),
    ]
    if options.train or options.page:
        heads = ("model", "difference on TorchRec's plan", "on ours", "remark")
        tables.append(
            (
                "Largest difference of outputs from the whole model, over two steps on four gloo processes",
                heads,
                list(_trained()),
            )
        )
    if options.page:
        write_results("drop_in", TITLE, tables, "python -m tests.drop_in --page")
    else:
        for caption, heads, rows in tables:
            print(caption, *(" | ".join(map(str, row)) for row in (heads, *rows)), sep="\n")
    wrong = sum(UNEXPECTED in str(row[-1]) for _, _, rows in tables for row in rows)
    print(f"{sum(len(rows) for *_, rows in tables)} situations, {wrong} unexpected", file=sys.stderr)
    return int(wrong > 0)


def _planned(situations: Sequence[Situation]) -> Iterator[tuple[str, str, str, str]]:
    for situation in situations:
        outcomes = {whose: outcome(situation, whose) for whose in ("theirs", "ours")}
        kept = all(
            each.plan is None or situation.holds is None or situation.holds(tables_by_name(each.plan))
            for each in outcomes.values()
        )
        expected = kept and (outcomes["theirs"].what, outcomes["ours"].what) == (situation.theirs, situation.ours)
        said = situation.why or ("; ".join(outcomes["ours"].warned) if outcomes["ours"].what == PLANNED else "")
        yield situation.name, outcomes["theirs"].what, outcomes["ours"].what, said if expected else UNEXPECTED


def _trained() -> Iterator[tuple[str, str, str, str]]:
    trainings = differences(TRAINED)
    for row in TRAINED:
        theirs, ours = (trainings[row.name][whose]["difference"] for whose in ("theirs", "ours"))
        expected = (theirs <= row.tolerance) == row.theirs and ours <= row.tolerance
        yield row.name, f"{theirs:.1g}", f"{ours:.1g}", row.why if expected else UNEXPECTED


if __name__ == "__main__":
    sys.exit(main())
