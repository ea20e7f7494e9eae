"""Which columns to profile, and that all files agree about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.errors import InvalidInput
from shardwright.workload.profile.kinds import ColumnKind, column_kind, is_empty_type, is_nested
from shardwright.workload.profile.readers import LogReader

_NAMED = 20


@dataclass
class Selection:
    """The columns of ids that a set of files has in common.

    Attributes:
        columns: the only columns wanted; None for all that hold ids.
        exclude: columns not wanted.
        kinds: kind of each column of ids; None as long as no file has a value in it.
        left_out: type of every other column, or "excluded".
        first: the first file, which the others must agree with.
        is_events: whether the files are event files.
    """

    columns: Collection[str] | None
    exclude: Collection[str]
    kinds: dict[str, ColumnKind | None] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    first: Path | None = None
    is_events: bool = False

    def include(self, log: LogReader) -> None:
        """Take in one more file.

        Raises:
            InvalidInput: a named column does not exist or holds no ids, or the file disagrees with the first.
        """
        kinds = self._kinds_of(log)
        if self.first is None:
            self.first, self.kinds, self.is_events = log.path, kinds, log.is_events
            return
        if log.is_events != self.is_events:
            raise InvalidInput(
                f"{log.path}: event files (`user item` lines) do not mix with files of samples such as {self.first}; profile them apart"
            )
        for name in [*self.kinds, *kinds]:
            if name not in kinds or name not in self.kinds:
                has, lacks = (log.path, self.first) if name in kinds else (self.first, log.path)
                raise InvalidInput(
                    f"{lacks}: column '{name}' is missing or holds no ids, but holds ids in {has}; all files need the same columns"
                )
            ours, theirs = self.kinds[name], kinds[name]
            if ours is not None and theirs is not None and ours != theirs:
                raise InvalidInput(
                    f"{log.path}: column '{name}' holds {theirs}, but {ours} in {self.first}; write both with one type"
                )
            self.kinds[name] = ours or theirs

    def id_columns(self) -> dict[str, ColumnKind]:
        """Kind of each column that has ids.

        Raises:
            InvalidInput: there is none.
        """
        found = {name: kind for name, kind in self.kinds.items() if kind is not None}
        if not found and self.kinds:
            raise InvalidInput(
                f"{self.first}: the log is empty: columns {_listed(self.kinds)} have no value; name a log with ids"
            )
        if not found:
            others = _listed(f"{name} ({reason})" for name, reason in self.left_out.items())
            raise InvalidInput(
                f"{self.first}: no column holds embedding ids (integers, text or lists of these); its columns: {others}"
            )
        return found

    def _kinds_of(self, log: LogReader) -> dict[str, ColumnKind | None]:
        self._check_names(log)
        kinds: dict[str, ColumnKind | None] = {}
        for name, column_type in zip(log.schema.names, log.schema.types, strict=True):
            kind = column_kind(column_type)
            if name in self.exclude:
                self.left_out[name] = "excluded"
            elif self.columns is not None and name not in self.columns:
                self.left_out[name] = "not selected"
            elif kind is not None or is_empty_type(column_type):
                kinds[name] = kind
            elif self.columns is not None or is_nested(column_type):
                raise InvalidInput(
                    f"{log.path}: column '{name}' has type {column_type}; "
                    "ids are integers, text or lists of these: convert or exclude the column"
                )
            else:
                self.left_out[name] = f"{column_type} (ids are integers or text)"
        return kinds

    def _check_names(self, log: LogReader) -> None:
        names = log.schema.names
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise InvalidInput(f"{log.path}: column '{twice[0]}' occurs twice; column names must be unique")
        for position, name in enumerate(names, start=1):
            if not name or not name.isprintable():
                raise InvalidInput(
                    f"{log.path}: column {position} is named {name!r}, must be printable text; rename it"
                )
        for name in (*(self.columns or ()), *self.exclude):
            if name not in names:
                raise InvalidInput(f"{log.path}: there is no column '{name}'; its columns are {_listed(names)}")


def _listed(items: Iterable[str]) -> str:
    texts = list(items)
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more
