"""The sample store: one SQLite file with all measurements, of one machine or several.

    samples/samples.sqlite

A *work* is the work of one device (`DeviceWork`); a digest of its shards, seeds and optimizer identifies it. A *set* is a work with the
reason why it was measured: its kind is "random", "task", "policy", "pair", "control" and so on, and its label names its origin. One work
may be several sets. Every *visit* to a work is a row with the hardware that it was made on.

Each visit is committed at once, to SQLite's write-ahead log. A killed process loses only its current visit, and no visit is stored twice.
Several processes may write to one store and read from it. Visits keep the order of their arrival, independently of the clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.files import is_missing
from shardwright.hardware import DECISIVE, Fingerprint, differences
from shardwright.measure.device_work import ASSUMED_ELASTICITY, DeviceWork, Job, Visit
from shardwright.sharding.work import columns_of

NAME = "samples.sqlite"

_VERSION = 3
_APPLICATION = 0x53574B53  # distinguishes a sample store from other SQLite files
_PATIENCE_S = 60.0
_LARGEST_VALUE = 2**24  # most bytes of one value in the file; a set of 60 shards takes 20 kB
_SCHEMA = """
CREATE TABLE hardware(id INTEGER PRIMARY KEY, decisive TEXT NOT NULL UNIQUE, fingerprint TEXT NOT NULL);
CREATE TABLE works(id INTEGER PRIMARY KEY, optimizer TEXT NOT NULL, batch_size INTEGER NOT NULL, shards BLOB NOT NULL,
    features BLOB);
CREATE TABLE sets(id INTEGER PRIMARY KEY, work INTEGER NOT NULL REFERENCES works, kind TEXT NOT NULL, label TEXT NOT NULL,
    UNIQUE(work, kind, label));
CREATE TABLE visits(id INTEGER PRIMARY KEY, work INTEGER NOT NULL REFERENCES works, hardware INTEGER NOT NULL REFERENCES hardware,
    forward_ms REAL NOT NULL, backward_ms REAL NOT NULL, batches INTEGER NOT NULL, sentinel REAL NOT NULL, usual_ms REAL NOT NULL,
    measured_at REAL NOT NULL, forward_elasticity REAL NOT NULL, backward_elasticity REAL NOT NULL);
CREATE INDEX visits_of_work ON visits(work, hardware);
CREATE TABLE failures(work INTEGER NOT NULL REFERENCES works, hardware INTEGER NOT NULL REFERENCES hardware, error TEXT NOT NULL,
    PRIMARY KEY(work, hardware));
CREATE TABLE collectives(id INTEGER PRIMARY KEY, hardware INTEGER NOT NULL REFERENCES hardware, collection TEXT NOT NULL,
    sample INTEGER NOT NULL, repeat INTEGER NOT NULL, document TEXT NOT NULL, UNIQUE(hardware, collection, sample, repeat));
"""


class SampleStore:
    """A sample store, open for writing; a context manager.

    Args:
        folder: folder of the store; made if it does not exist.
        hardware: fingerprint of the measuring machine.
        decisive: fields of the fingerprint; machines that agree in them count as the same hardware.

    Raises:
        InvalidInput: the folder cannot be written to, or its file is no sample store, damaged, or of another release.
    """

    def __init__(self, folder: str | Path, hardware: Fingerprint, decisive: Sequence[str] = DECISIVE) -> None:
        self.folder, self.hardware = Path(folder), dict(hardware)
        self._decisive = decisive
        self._path = self.folder / NAME
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"{folder}: cannot be made ({error.strerror}); name a folder you may write to"
            ) from error
        with _told(self._path):
            self._db = _connected(self._path, f"{self._path.absolute().as_uri()}?mode=rwc")
            try:
                _log_ahead(self._db)
                self._make_or_check()
                self._hardware = self._hardware_id()
            except BaseException:
                self._db.close()
                raise

    def add(self, job: Job, visit: Visit) -> None:
        """Store a visit to the work of a job durably."""
        times = (visit.forward_ms, visit.backward_ms, visit.batches, visit.sentinel, visit.usual_ms, visit.measured_at)
        with self._writing():
            number = self._named(job)
            self._db.execute(
                "INSERT INTO visits VALUES(NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (number, self._hardware, *times, *visit.elasticity),
            )

    def fail(self, job: Job, why: str) -> None:
        """Note that this machine cannot measure the work of a job."""
        with self._writing():
            row = (self._named(job), self._hardware, why)
            self._db.execute("INSERT OR REPLACE INTO failures VALUES(?, ?, ?)", row)

    def visits(self, work: DeviceWork) -> list[Visit]:
        """The visits to a work on this hardware, in the order in which they arrived."""
        with _told(self._path):
            rows = self._db.execute(
                "SELECT * FROM visits WHERE work = ? AND hardware = ? ORDER BY id", (work_id(work), self._hardware)
            )
            return [visit_of(row) for row in rows]

    def usual_ms(self) -> float | None:
        """The state to convert times to: the median usual state over the visits on this hardware; None without visits."""
        with _told(self._path):
            states = self._db.execute("SELECT usual_ms FROM visits WHERE hardware = ?", (self._hardware,)).fetchall()
        return float(np.median(states)) if states else None

    def labelled(self, kind: str, prefix: str = "") -> dict[str, list[Visit]]:
        """The visits on this hardware to the sets of a kind, by label.

        Args:
            kind: kind of the sets.
            prefix: beginning of their labels.
        """
        visits: dict[str, list[Visit]] = {}
        with _told(self._path):
            for label, *row in self._db.execute(
                "SELECT label, visits.* FROM sets JOIN visits USING(work)"
                " WHERE kind = ? AND substr(label, 1, ?) = ? AND hardware = ? ORDER BY visits.id",
                (kind, len(prefix), prefix, self._hardware),
            ):
                visits.setdefault(label, []).append(visit_of(row))
        return visits

    def failures(self) -> dict[str, str]:
        """Why sets could not be measured on this hardware, by label."""
        with _told(self._path):
            rows = self._db.execute(
                "SELECT label, error FROM sets JOIN failures USING(work) WHERE hardware = ?", (self._hardware,)
            )
            return dict(rows.fetchall())

    def add_collective(self, collection: str, sample: int, repeat: int, document: Mapping[str, Any]) -> None:
        """Store a measured collective, unless the store has it already.

        Args:
            collection: digest of the collection, within which samples are numbered.
            sample: number of the sample.
            repeat: number of the measurement of this sample.
            document: the row.
        """
        row = (self._hardware, collection, sample, repeat, json.dumps(document))
        with self._writing():
            self._db.execute(
                "INSERT OR IGNORE INTO collectives(hardware, collection, sample, repeat, document) VALUES(?, ?, ?, ?, ?)",
                row,
            )

    def collectives(self, collection: str) -> set[tuple[int, int]]:
        """(sample, repeat) of the collectives of a collection that were measured or given up on this hardware."""
        with _told(self._path):
            return set(
                self._db.execute(
                    "SELECT sample, repeat FROM collectives WHERE hardware = ? AND collection = ?",
                    (self._hardware, collection),
                ).fetchall()
            )

    def close(self) -> None:
        """Close the file; everything is already committed."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run a block in a transaction that locks at once, so that two writers wait for each other and neither fails."""
        with _told(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _make_or_check(self) -> None:
        with self._writing():
            if not _is_empty(self._db):
                version = _check(self._db, self._path)
                for part in ("forward", "backward") if version < 2 else ():
                    new = f"{part}_elasticity REAL NOT NULL DEFAULT {ASSUMED_ELASTICITY}"
                    self._db.execute(f"ALTER TABLE visits ADD COLUMN {new}")
                if version < 3:
                    self._db.execute("ALTER TABLE works ADD COLUMN features BLOB")
                    self._db.execute(f"PRAGMA user_version = {_VERSION}")
                return
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def _hardware_id(self) -> int:
        decisive = json.dumps([self.hardware.get(key) for key in self._decisive])
        with self._writing():
            self._db.execute(
                "INSERT OR IGNORE INTO hardware(decisive, fingerprint) VALUES(?, ?)",
                (decisive, json.dumps(self.hardware)),
            )
            (number,) = self._db.execute("SELECT id FROM hardware WHERE decisive = ?", (decisive,)).fetchone()
        return int(number)

    def _named(self, job: Job) -> int:
        """The number of a job's work; adds the work, and the set of the job's kind and label, if the store lacks them."""
        work, number = job.work, work_id(job.work)
        if not self._db.execute("SELECT 1 FROM works WHERE id = ?", (number,)).fetchone():
            batch = job.batch_size or max((shard.samples for shard in work.works), default=0)
            features = np.array([len(shard.feature_shares) for shard in work.works], "<i4")
            known = features.tobytes() if (features > 1).any() else None
            row = (number, work.optimizer, batch, columns_of(work.works).astype("<f8").tobytes(), known)
            self._db.execute("INSERT INTO works VALUES(?, ?, ?, ?, ?)", row)
        self._db.execute("INSERT OR IGNORE INTO sets(work, kind, label) VALUES(?, ?, ?)", (number, job.kind, job.label))
        return number


def visit_of(row: Sequence[Any]) -> Visit:
    """Convert a row of the table `visits`."""
    _, _, _, forward, backward, batches, sentinel, usual, measured_at, *known = row
    elasticity = (float(known[0]), float(known[1])) if known else (ASSUMED_ELASTICITY, ASSUMED_ELASTICITY)
    times = (float(forward), float(backward), int(batches), float(sentinel), float(usual), float(measured_at))
    return Visit(*times, elasticity=elasticity)


def work_id(work: DeviceWork) -> int:
    """The number of a work: 52 bits of a digest of its shards, seeds and optimizer, the same in every store."""
    digest = hashlib.sha256(f"{work.optimizer} {work.seeds}".encode())
    for shard in work.works:
        shared = f" {shard.feature_shares}" if len(shard.feature_shares) > 1 else ""
        digest.update(
            f"{shard.rows} {shard.dim} {shard.samples} {shard.lookups} {shard.pooled} {shard.dtype}{shared}\n".encode()
        )
        digest.update(shard.access.rows.tobytes() + shard.access.share.tobytes())
    return int.from_bytes(digest.digest()[:7], "big") >> 4


def hardware_of(db: sqlite3.Connection, table: Literal["visits", "collectives"]) -> list[tuple[int, Fingerprint]]:
    """Number and fingerprint of each kind of hardware with rows in a table, in the order in which the store first saw it."""
    chosen = {
        "visits": "SELECT id, fingerprint FROM hardware WHERE id IN (SELECT hardware FROM visits) ORDER BY id",
        "collectives": "SELECT id, fingerprint FROM hardware WHERE id IN (SELECT hardware FROM collectives) ORDER BY id",
    }
    rows = db.execute(chosen[table])
    return [(int(number), fingerprint_of(text)) for number, text in rows]


def chosen_hardware(
    where: str | Path,
    kinds: Sequence[tuple[int, Fingerprint]],
    wanted: Fingerprint | str | None,
    *,
    allow_other: bool,
    decisive: Sequence[str] = DECISIVE,
) -> list[int]:
    """Choose the hardware whose measurements to take; return its number.

    Args:
        where: the store, for messages.
        kinds: number and fingerprint of each kind of hardware in the store.
        wanted: a fingerprint, or a part of the name of a processor or backend; None if there is only one kind.
        allow_other: take all kinds; return all numbers.
        decisive: fields in which fingerprints must agree.

    Raises:
        InvalidInput: no hardware matches, or several kinds do.
    """
    if allow_other:
        return [number for number, _ in kinds]
    if isinstance(wanted, str):
        alike = [kind for kind in kinds if any(wanted.lower() in kind[1].get(key, "").lower() for key in decisive)]
    else:
        alike = [kind for kind in kinds if wanted is None or not differences(kind[1], wanted, decisive)]
    if len(alike) == 1:
        return [alike[0][0]]
    there = "; ".join(", ".join(f"{key} {fingerprint.get(key)}" for key in decisive) for _, fingerprint in kinds)
    problem = (
        "holds measurements of several kinds of hardware or software"
        if alike
        else "holds only measurements of other hardware or software"
    )
    raise InvalidInput(
        f"{where}: {problem}; it has: {there}. Name a processor or backend with --hardware, or take all with --allow-other-hardware"
    )


@contextmanager
def reading(folder: str | Path) -> Iterator[sqlite3.Connection]:
    """Open a store for reading, even while other processes write to it.

    Raises:
        InvalidInput: there is no store, or its file is foreign, damaged, or of another release.
    """
    path = Path(folder) / NAME
    if is_missing(path):
        raise InvalidInput(
            f"{folder}: is no sample store ({NAME} is missing); make one with: shardwright collect -o {folder}"
        )
    # SQLite keeps files beside the store while it is read, and can remove them only if it may write there.
    writable = os.access(folder, os.W_OK) and os.access(path, os.W_OK)
    mode = "mode=rw" if writable else "mode=ro" if not is_missing(f"{path}-wal") else "mode=ro&immutable=1"
    with _told(path):
        db = _connected(path, f"{path.absolute().as_uri()}?{mode}")
        try:
            if _is_empty(db):  # its process was killed before it had made the tables
                raise InvalidInput(f"{folder}: holds no samples; collect some: shardwright collect -o {folder}")
            _check(db, path)
            db.execute("PRAGMA query_only = ON")
            db.execute("BEGIN")  # one snapshot, while others may write
            yield db
        finally:
            db.close()


def fingerprint_of(text: object) -> Fingerprint:
    """Parse the JSON text of a fingerprint.

    Raises:
        ValueError: the text is no fingerprint.
    """
    fingerprint = json.loads(str(text))
    if not isinstance(fingerprint, dict):
        raise ValueError("a fingerprint is no object")
    return {str(key): str(value) for key, value in fingerprint.items()}


def _connected(path: Path, address: str) -> sqlite3.Connection:
    """Open a connection that trusts nothing in the file."""
    if not is_missing(path) and not path.is_file():
        raise InvalidInput(f"{path}: is no file; name another folder")
    db = sqlite3.connect(address, uri=True, timeout=_PATIENCE_S, isolation_level=None)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _log_ahead(db: sqlite3.Connection) -> None:
    """Switch the file to a write-ahead log. This waits for another process that switches it at the same time, as SQLite does not."""
    given_up = time.monotonic() + _PATIENCE_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > given_up:
                raise
            time.sleep(0.01)


def _is_empty(db: sqlite3.Connection) -> bool:
    return bool(db.execute("SELECT count(*) = 0 FROM sqlite_master").fetchone()[0])


def _check(db: sqlite3.Connection, path: Path) -> int:
    """The format version of a file that is a sample store of this release or an earlier one, without triggers or views."""
    (application,), (version,) = (
        db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    acting = db.execute("SELECT count(*) FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone()[0]
    if application != _APPLICATION or acting:
        raise InvalidInput(f"{path}: is no sample store; name another folder, or move the file away")
    if not 1 <= version <= _VERSION:
        raise InvalidInput(
            f"{path}: is of format version {version}, this release reads {_VERSION}; use the release that wrote it, or another folder"
        )
    return int(version)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn the errors of SQLite into errors with a remedy."""
    try:
        yield
    except ShardwrightError:  # some are ValueErrors too
        raise
    except sqlite3.OperationalError as error:
        text = str(error)
        if "full" in text or "disk I/O" in text:
            raise ShardwrightError(
                f"{path}: writing failed ({text}); make room on the disk, then run the same command again; the store is intact"
            ) from error
        if "locked" in text or "busy" in text:
            raise InvalidInput(
                f"{path}: another process has kept the store locked for {_PATIENCE_S:.0f} s; wait for it, or end it"
            ) from error
        if "no such" in text:
            raise InvalidInput(_damaged(path, text)) from error
        raise InvalidInput(f"{path}: cannot be used ({text}); name a folder you may write to") from error
    except (sqlite3.DatabaseError, ValueError, TypeError, LookupError, RecursionError, OverflowError) as error:
        raise InvalidInput(_damaged(path, str(error))) from error


def _damaged(path: Path, text: str) -> str:
    return (
        f"{path}: is damaged, or no sample store ({text}); move it away and collect again, or try to recover rows with: "
        f"sqlite3 {path} .recover"
    )
