"""Logs of TorchRec's planner: made up in the layout of its releases, and one that the installed release prints."""

import re

import pytest

from shardwright.errors import InvalidInput
from shardwright.sharding.stats_table import read_stats

NEW = (
    "FQN", "Sharding", "Compute Kernel", "Perf (ms)", "Storage (HBM, DDR, SSD)", "Cache Load Factor", "Sum Pooling Factor",
    "Sum Num Poolings", "Num Indices", "Output", "Weighted", "Sharder", "Features", "Emb Dim (CW Dim)", "Hash Size", "Ranks",
)  # fmt: skip
OLD = (
    "FQN", "Sharding", "Compute Kernel", "Perf (ms)", "Pooling Factor", "Output", "Features", "Emb Dim", "Hash Size", "Ranks"
)  # fmt: skip
ROWS = (
    ("bags.user", "TW", "fused", "1.0 (1,0,0,0,0)", "(0.5 GB, 0.0 GB, 0.0 GB)", "None", "6.0", "2.0", "6.0", "pooled", "weighted", "S",
     "2", "64", "4000", "1"),
    ("bags.item", "CW", "fused", "1.0 (1,0,0,0,0)", "(0.5 GB, 0.0 GB, 0.0 GB)", "None", "0.0", "1.0", "0.0", "pooled", "unweighted", "S",
     "1", "64 (16)", "9000", "0,1,1,3"),
    ("ids.seq", "RW", "fused", "1.0 (1,0,0,0,0)", "(0.5 GB, 0.0 GB, 0.0 GB)", "None", "9.5", "1.0", "9.5", "sequence", "unweighted",
     "S", "1", "32", "1001", "0-3"),
)  # fmt: skip
MEMORY = (
    "Reserved Memory:", "   HBM: 10.0 GB", "Planning Memory:", "   HBM: 70.0 GB, DDR: 128.0 GB", "", "Dense Storage (per rank):",
    "   HBM: 4.0 GB, DDR: 0.0 GB", "", "KJT Storage (per rank):", "   HBM: 1.0 GB, DDR: 0.0 GB",
)  # fmt: skip


def grid(rows):
    widths = [max(len(row[column]) for row in rows) + 3 for column in range(len(rows[0]))]
    return ["".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def old_row(row):
    return (*row[:4], row[8], row[9], row[12], row[13].split()[0], *row[14:])


def table(header=NEW, rows=ROWS, ranks=4, batch_size=512, tail=MEMORY):
    body = grid([header, tuple("-----" for _ in header), *rows])
    above = grid(
        [
            ("Rank", "HBM (GB)", "Shards"),
            ("----",) * 3,
            *((str(rank), "1.0 (9%)", "TW: 1 CW: 0") for rank in range(ranks)),
        ]
    )
    inside = [
        " --- Planner Statistics ---", *above, "", "Parameter Info:", *body, "", f"Batch Size: {batch_size}", *tail,
    ]  # fmt: skip
    width = max(map(len, inside)) + 3
    return ["#" * (width + 2), *(f"# {line:<{width - 1}}#" for line in inside), "#" * (width + 2)]


def log(lines, prefix="INFO:torchrec.distributed.planner.stats:"):
    noise = ["step 1 loss 0.3", "worker #3 started", "## Training ##"]
    return "\n".join([*noise, *(prefix + line for line in lines), *noise])


def wrapped(text, width):
    return "\n".join(
        part
        for line in text.split("\n")
        for part in [line[i : i + width].rstrip() for i in range(0, max(len(line), 1), width)]
    )


def only(text):
    (stats,) = read_stats(text, "x.log")
    return stats


def test_the_table_is_read():
    stats = only(log(table()))
    user, item, seq = stats.tables
    assert (stats.ranks, stats.batch_size, stats.line) == (4, 512, 5)
    assert (user.name, user.kind, user.ranks, user.rows, user.dim) == ("bags.user", "TW", (1,), 4000, 64)
    assert (user.lookups, user.weighted, user.pooled, user.storage) == ((3.0, 3.0), True, True, 2**29)
    assert (item.block_dim, item.ranks, item.lookups) == (16, (0, 1, 1, 3), (0.0,))
    assert (seq.ranks, seq.pooled, seq.lookups) == ((0, 1, 2, 3), False, (9.5,))
    assert (stats.memory, stats.card, stats.others) == (70 * 2**30, 80 * 2**30, 5 * 2**30)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("INFO:torchrec.distributed.planner.stats:", "2026-01-02 03:04:05,678 [stats.py:9] INFO - "),
        lambda text: text.replace("INFO:torchrec.distributed.planner.stats:", "[rank0]:"),
        lambda text: text.replace("INFO:torchrec.distributed.planner.stats:", "#12 0.345 "),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\n".join(f"\x1b[32m{line}\x1b[0m" for line in text.split("\n")),
        lambda text: text.replace("\nINFO", "\n 40%|####      |\r 50%|#####     |\rINFO"),
        lambda text: text.replace("\n", "\nother output\n"),
        lambda text: wrapped(text, 80),
        lambda text: wrapped(text, 101),
        lambda text: text + "\n" + text,
        lambda text: "\n".join(f"[default{rank}]:{line}" for line in text.split("\n") for rank in (0, 1)),
        lambda text: text + "\n" + "x" * 1000,
    ],
    ids=["stamps", "rank", "docker", "crlf", "colours", "bars", "between", "80", "101", "twice", "mixed", "long"],
)  # fmt: skip
def test_whatever_a_log_does_to_lines(change):
    assert only(change(log(table()))).tables == only(log(table())).tables


def test_columns_of_older_releases():
    stats = only(log(table(OLD, [old_row(row) for row in ROWS], tail=())))
    assert [(row.lookups, row.dim, row.block_dim, row.storage) for row in stats.tables] == [
        ((3.0, 3.0), 64, None, None),
        ((0.0,), 64, None, None),
        ((9.5,), 32, None, None),
    ]
    assert stats.memory is None
    assert stats.others == 0


def test_a_feature_has_as_many_bags_as_poolings():
    (name, *middle), bags = ROWS[1], "3.0"
    new = (name, *middle[:5], "4.0", bags, "12.0", *middle[8:])
    assert only(log(table(rows=[new]))).tables[0].lookups == (4.0, 4.0, 4.0)
    header = (*NEW[:8], *NEW[9:])  # before there was a column of both together
    assert only(log(table(header, rows=[(*new[:8], *new[9:])]))).tables[0].lookups == (4.0, 4.0, 4.0)


def test_batches_of_features_count_in_samples_of_the_step():
    rows = [(*row, batches) for row, batches in zip(ROWS, ("256, 1024", "n/a", "512"), strict=True)]
    plan = only(log(table((*NEW, "Batch Sizes"), rows)))
    assert [row.lookups for row in plan.tables] == [(1.5, 6.0), (0.0,), (9.5,)]


def test_several_plans_come_in_their_order():
    text = log(table()) + "\n" + log(table(rows=ROWS[:2]))
    assert [len(stats.tables) for stats in read_stats(text, "x.log")] == [3, 2]


def test_two_tables_of_one_name_and_other_shapes_are_two():
    other = ("bags.user", *ROWS[0][1:14], "17", "2")
    assert [row.name for row in only(log(table(rows=[*ROWS, other]))).tables] == [
        "bags.user",
        "bags.item",
        "ids.seq",
        "bags.user_2",
    ]


def cut(lines):
    return lines[: next(index for index, line in enumerate(lines) if "bags.item" in line) + 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing here\n" * 9, "holds no planner statistics"),
        ("#" * 50 + "\n# banner #\n" + "#" * 50, "holds no planner statistics"),
        (log(cut(table())), "cut off after 2 tables"),
        (log([line for line in table() if "bags." not in line and "ids." not in line]), "cut off after 0 tables"),
        (log([line for line in table() if "FQN" not in line]), "list no tables"),
        (log(table()).partition("FQN")[2].partition("\n")[2], "lacks its head"),
        (log([re.sub(" +", " ", line) for line in table()]), "keeps the spaces"),
        (log(table(ranks=3)), "lies on rank 3, but the plan has ranks 0 to 2"),
        (log(table(rows=[*ROWS, ROWS[0]])), "table 'bags.user' stands in line"),
        (log(table(NEW[:-1], [row[:-1] for row in ROWS])), "no column 'Ranks'"),
        (log(table(rows=[(*row[:14], "many", row[15]) for row in ROWS])), "'many' in column 'Hash Size'"),
        (log(table(rows=[(*row[:13], "64 (0)", *row[14:]) for row in ROWS])), "'64 (0)' in column 'Emb Dim (CW Dim)'"),
        (log(table(rows=[(*row[:15], "0,,1") for row in ROWS])), "no list of ranks"),
        (log(table(rows=[(*row[:15], "7-3") for row in ROWS])), "no list of ranks"),
        (
            log([line.replace("     TW", "  TW  or") if "bags.user" in line else line for line in table()]),
            "cells, its header",
        ),
    ],
)
def test_bad_logs_are_one_line(text, says):
    with pytest.raises(InvalidInput) as error:
        read_stats(text, "x.log")
    assert says in str(error.value)
    assert str(error.value).startswith("x.log: ")
    assert "\n" not in str(error.value)
