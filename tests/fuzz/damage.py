"""Damage to valid files: to their content, to their bytes, and to the place that their name leads to."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import yaml

STEERING = "\x1b]0;pwn\x07\x1b[31m"
"""Sets a terminal's title and colour; must never reach one."""

MARKUP = "</script><img src=x onerror=pwn()>"
"""Runs in a page that takes it over as it is."""

VALUES: tuple[Any, ...] = (
    None, True, False, "", "x" * 5000, STEERING, MARKUP, "\u202egnp", "a\nb\0c", "80 GB", "nan", 10**30, 10**400, 2**63, -1, 0, 1, 2, 0.5,
    1e308, 5e-324, float("nan"), float("inf"), [], {}, [[]], [None], ["a", 1], {"file": "task.yaml"}, {"zipf": 99}, "é☃",
)  # fmt: skip


def harm(rng: Random, path: Path, kind: str) -> str:
    """Damage a file, or a file of a store; return the kind of damage."""
    if path.is_dir():
        path = rng.choice(sorted(entry for entry in path.iterdir() if entry.name != ".lock"))
    content = path.read_bytes()
    ways: list[Callable[[Random, bytes, Path], bytes]] = [_bytes]
    if path.suffix == ".sqlite":
        ways += [_database] * 3
    elif kind in ("log", "store") and content[:4] == b"PAR1":
        ways += [_parquet] * 3
    elif content[8:9] == b"{" and kind != "log":
        ways += [_safetensors] * 3
    elif kind == "log":
        ways += [_log] * 3
    else:
        ways += [_document] * 4 + [_text]
    way = rng.choice(ways)
    path.write_bytes(way(rng, content, path))
    return way.__name__.strip("_")


def _document(rng: Random, content: bytes, path: Path) -> bytes:
    document = yaml.load(content, Loader=yaml.CSafeLoader)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        document = _change(rng, document)
    if path.suffix == ".json" or rng.random() < 0.2:
        return json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return yaml.dump(document, Dumper=yaml.CSafeDumper, allow_unicode=True, sort_keys=False).encode()


def _change(rng: Random, document: Any) -> Any:
    """The document with something changed somewhere in it."""
    places = list(_places(document))
    if not places:
        return rng.choice(VALUES)
    parent, key = rng.choice(places)
    way = rng.randrange(6)
    if way == 0:
        del parent[key]
    elif way == 1 and isinstance(parent, dict):
        parent[rng.choice(["", key.upper(), f"{key} ", STEERING, "rows", "format"])] = parent.pop(key)
    elif way == 2 and isinstance(parent, list):
        parent.extend([parent[key]] * rng.choice([1, 2, 300]))
    elif way == 3:
        other, name = rng.choice(places)
        parent[key] = json.loads(json.dumps(other[name])) if name in other or isinstance(other, list) else None
    elif way == 4 and isinstance(parent[key], (int, float)):
        parent[key] = type(parent[key])(parent[key] * rng.choice([-1, 0.5, 2, 1000])) if abs(parent[key]) < 1e18 else -1
    else:
        parent[key] = rng.choice(VALUES)
    return document


def _places(node: Any) -> Any:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(items):
        yield node, key
        yield from _places(value)


def _text(rng: Random, content: bytes, path: Path) -> bytes:
    text = content.decode("utf-8", "replace")
    cut = rng.randrange(len(text) + 1)
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
    return rng.choice(
        [
            lambda: text[:cut] + rng.choice(["[", "{", "]", "}", ":", "&a ", "*a", "!!python/object/apply:os.system [ls]", "\t", "|", "%"])
            + text[cut:],
            lambda: "﻿" + text,
            lambda: bomb + text,
            lambda: "[" * 20_000 + text,
            lambda: '{"a":' * 20_000 + text,
            lambda: text + "\n---\n" + text,
            lambda: text + text,
            lambda: text.replace("\n", "\r\n"),
            lambda: text.replace(" ", "\t"),
            lambda: text[:cut] + "\0" + text[cut:],
            lambda: text + "\n" + "x" * 1_000_000,
            lambda: text.replace("0", "9" * 5000, 1),
            lambda: text.replace("1", "１"),
        ]
    )().encode(rng.choice(["utf-8"] * 6 + ["utf-16"]), "surrogatepass")  # fmt: skip


def _bytes(rng: Random, content: bytes, path: Path) -> bytes:
    data = bytearray(content)
    cut, size = rng.randrange(len(data) + 1), rng.choice([1, 4, 64, 1000])
    way = rng.randrange(7)
    if way == 0:
        return bytes(data[:cut])
    if way == 1:
        return b""
    if way == 2:
        return rng.randbytes(rng.choice([1, 100, 10_000]))
    if way == 3:
        return bytes(data[:cut] + data[cut : cut + size] + data[cut:])
    if way == 4:
        return bytes(data[:cut] + b"\0" * size + data[cut + size :])
    for _ in range(rng.choice([1, 1, 5, 50]) if data else 0):
        where = rng.randrange(len(data)) if way == 5 else -1 - rng.randrange(min(len(data), 200))
        data[where] = rng.randrange(256)
    return bytes(data)


def _safetensors(rng: Random, content: bytes, path: Path) -> bytes:
    """Change the header, the JSON inside one of its texts, or the numbers."""
    size = struct.unpack("<Q", content[:8])[0]
    header, numbers = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    metadata = header.get("__metadata__", {})
    way, name = rng.randrange(5), rng.choice(sorted(metadata) or [""])
    if way == 0:
        for _ in range(rng.choice([1, 20])):
            start = 4 * rng.randrange(max(len(numbers) // 4, 1))
            numbers[start : start + 4] = struct.pack("<f", rng.choice([float("nan"), float("inf"), -1e30, -1.0, 0.0]))
    elif way == 1 and metadata:
        metadata[name] = rng.choice(["", "nan", "-1", "[]", "{", STEERING, "x" * 5000, "9" * 5000, "é"])
    elif way == 2 and metadata.get(name, "").startswith(("{", "[")):
        metadata[name] = json.dumps(_change(rng, json.loads(metadata[name])))
    elif way == 3 and metadata:
        del metadata[name]
    else:
        tensor = rng.choice([key for key in header if key != "__metadata__"])
        shape = header[tensor]["shape"]
        if rng.random() < 0.5:  # another shape of as many numbers, which safetensors itself lets pass
            header[tensor]["shape"] = rng.choice([[1, *shape], shape[::-1], [max(math.prod(shape), 0)]])
        else:
            header = _change(rng, header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(numbers)


def _database(rng: Random, content: bytes, path: Path) -> bytes:
    """Change a value of a row or the values of a column, or drop a table."""
    plain = [
        value for value in VALUES if isinstance(value, (str, float, int, type(None))) and value not in (10**30, 10**400)
    ]
    values = [*plain, b"", b"\0" * 320, json.dumps(rng.choice(plain)), 2**62]
    table = rng.choice(["hardware", "works", "sets", "visits", "collectives"])
    with closing(sqlite3.connect(path)) as db:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        where = rng.choice(["", f"WHERE rowid = (SELECT rowid FROM {table} LIMIT 1)"])
        value = rng.choice(values)
        with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):  # some rules hold for harm too
            if rng.random() < 0.1:
                db.execute(rng.choice([f"DROP TABLE {table}", f"DELETE FROM {table}", "PRAGMA user_version = 9"]))
            else:
                db.execute(f"UPDATE {table} SET {rng.choice(columns)} = ? {where}", (value,))
        db.commit()
    return path.read_bytes()


def _log(rng: Random, content: bytes, path: Path) -> bytes:
    fields = [
        "", '"', "'", "-1", "1.5", "nan", "9" * 30, "é☃", STEERING, "x" * 70_000, "1 2 3", "[1, 2]", "1;2", "1,2",
        "2024-01-01", "\0", "0x1f", MARKUP,
    ]  # fmt: skip
    lines = content.decode().splitlines()
    for _ in range(rng.choice([1, 1, 5])):
        where = rng.randrange(len(lines)) if rng.random() < 0.6 else 0
        separator = "," if "," in lines[where] else "\t" if "\t" in lines[where] else " "
        cells = lines[where].split(separator)
        cells[rng.randrange(len(cells))] = rng.choice(fields)
        lines[where] = separator.join(cells * rng.choice([1, 1, 1, 2]))
    text = rng.choice(["\n"] * 4 + ["\r\n", "\r", "\n\n"]).join(lines)
    if rng.random() < 0.2:
        text = text.replace(",", rng.choice([";", "|", "\t", ", "]))
    return text.encode(rng.choice(["utf-8"] * 5 + ["utf-16", "latin-1"]), "replace")


def _parquet(rng: Random, content: bytes, path: Path) -> bytes:
    """Drop, double, rename or retype columns, or add nulls; keep the file's own metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(content), use_threads=False)
    where = rng.randrange(table.num_columns)
    name, column, rows = table.column_names[where], table.column(where).combine_chunks(), table.num_rows
    odd = rng.choice(
        [
            lambda: pa.nulls(rows, column.type),
            lambda: pa.array([None if rng.random() < 0.3 else value for value in column.to_pylist()], column.type),
            lambda: pa.array([rng.choice([float("nan"), float("inf"), -1.0, 0.0, 1e300]) for _ in range(rows)]),
            lambda: pa.array([rng.choice([-1, 0, 2**62, -(2**63)]) for _ in range(rows)]),
            lambda: pa.array([rng.choice([STEERING, "", "x" * 2000, "1"]) for _ in range(rows)]),
            lambda: pa.array([{"a": 1, "b": [1]}] * rows),
            lambda: pa.array([[[1], []]] * rows),
            lambda: pa.array(range(rows), pa.timestamp("us")),
            lambda: pa.array([b"\xff\0"] * rows),
            lambda: pa.array([[]] * rows, pa.list_(pa.int32())),
            lambda: pa.array([i % 3 for i in range(rows)], pa.int8()).dictionary_encode(),
            lambda: pa.array([None] * rows, pa.null()),
            lambda: pa.array([True] * rows),
        ]
    )()
    way = rng.randrange(6)
    if way == 0:
        table = table.remove_column(where)
    elif way == 1:
        table = table.append_column(rng.choice([name, "", STEERING, MARKUP, "x" * 3000]), column)
    elif way == 2:
        table = table.slice(0, rng.choice([0, 1]))
    else:
        table = table.set_column(where, name, odd)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression=rng.choice(["snappy", "zstd", "gzip", "none"]))
    return bytes(sink.getvalue())


def misplace(rng: Random, path: Path) -> str:
    """Put something else in the place of a file or folder; return what it is."""
    content = path.read_bytes() if path.is_file() else b""
    aside = path.with_name(f"{path.stem[:40]}-aside")
    way = rng.choice(
        ["missing", "folder", "fifo", "loop", "dangling", "zero", "null", "full", "huge", "file", "linked", "no rights"]
    )
    if way == "no rights":
        path.chmod(0)
        return way
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if way == "folder":
        path.mkdir()
        (path / "inside").write_bytes(content)
    elif way == "fifo":
        os.mkfifo(path)
    elif way in ("loop", "dangling", "zero", "null", "full"):
        path.symlink_to({"loop": path.name, "dangling": "nowhere"}.get(way, f"/dev/{way}"))
    elif way == "huge":
        with path.open("wb") as file:
            file.write(content)
            file.truncate(20 << 30)  # takes no room
    elif way == "file":
        path.write_bytes(b"{}\n")
    elif way == "linked":
        aside.write_bytes(content)
        path.symlink_to(aside.name)
    return way
