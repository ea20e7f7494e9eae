"""The columns of a set of log files that hold embedding ids, and the selection of some by name or pattern."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from shardwright.errors import InvalidInput
from shardwright.workload.profile.formats import ColumnKind, LogReader, MixedIds, column_kind, is_empty_type

_NAMED = 20


@dataclass
class Selection:
    """The columns of ids that a set of files has in common.

    Attributes:
        columns: names or patterns of the only columns wanted; None for all that hold ids.
        exclude: names or patterns of columns not wanted.
        kinds: kind of each column of ids; None until a file has a value in it.
        left_out: for every other column, its type or why it is left out.
        first: the first file, with which the others must agree.
        is_events: whether the files are event files.
    """

    columns: Collection[str] | None
    exclude: Collection[str]
    kinds: dict[str, ColumnKind | None] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    first: Path | None = None
    is_events: bool = False

    def include(self, log: LogReader) -> None:
        """Add one more file.

        Raises:
            InvalidInput: the file disagrees with the first, or a column that is wanted holds no ids.
        """
        _check_names(log)
        kinds = self._kinds_of(log)
        if self.first is None:
            self.first, self.kinds, self.is_events = log.path, kinds, log.is_events
            return
        if log.is_events != self.is_events:
            raise InvalidInput(
                f"{log.path}: event files (`user item` lines) do not mix with files of samples such as {self.first}; profile them apart"
            )
        for name in [*self.kinds, *kinds]:
            if log.has_all_columns and (name not in kinds or name not in self.kinds):
                has, lacks = (log.path, self.first) if name in kinds else (self.first, log.path)
                raise InvalidInput(
                    f"{lacks}: column '{name}' is missing or holds no ids, but holds ids in {has}; all files need the same columns"
                )
            ours, theirs = self.kinds.get(name), kinds.get(name)
            if ours is not None and theirs is not None and ours != theirs:
                message = (
                    f"{log.path}: column '{name}' holds {theirs}, but {ours} in {self.first}; write both with one type"
                )
                mixed = {ours, theirs} == {ColumnKind("integers", False), ColumnKind("text", False)}
                raise MixedIds(message, name) if mixed and log.may_be_text else InvalidInput(message)
            self.kinds[name] = ours or theirs

    def id_columns(self) -> dict[str, ColumnKind]:
        """Return the kind of each column that has ids.

        Raises:
            InvalidInput: no column has ids, or a name or pattern fits no column.
        """
        names = [*self.kinds, *self.left_out]
        for pattern in (*(self.columns or ()), *self.exclude):
            if not matching(pattern, names):
                raise InvalidInput(f"{self.first}: there is no column '{pattern}'; its columns are {_listed(names)}")
        with_ids = {name: kind for name, kind in self.kinds.items() if kind is not None}
        if not with_ids and self.kinds:
            raise InvalidInput(
                f"{self.first}: the log is empty: columns {_listed(self.kinds)} have no value; name a log with ids"
            )
        if not with_ids:
            others = _listed(f"{name} ({reason})" for name, reason in self.left_out.items())
            raise InvalidInput(
                f"{self.first}: no column holds embedding ids (integers, text or lists of these); its columns: {others}"
            )
        return with_ids

    def _kinds_of(self, log: LogReader) -> dict[str, ColumnKind | None]:
        names = log.schema.names
        excluded = {name for pattern in self.exclude for name in matching(pattern, names)}
        wanted = (
            None if self.columns is None else {name for pattern in self.columns for name in matching(pattern, names)}
        )
        kinds: dict[str, ColumnKind | None] = {}
        for name, column_type in zip(names, log.schema.types, strict=True):
            kind = column_kind(column_type)
            if name in excluded:
                self.left_out[name] = "excluded"
            elif wanted is not None and name not in wanted:
                self.left_out[name] = "not selected"
            elif kind is not None or is_empty_type(column_type):
                kinds[name] = kind
            else:
                self.left_out[name] = f"{column_type} (ids are integers, text or lists of these)"
        unfit = [
            f"'{name}' has type {log.schema.field(name).type}"
            for name in names
            if name in (self.columns or ()) and name in self.left_out and name not in excluded
        ]
        if unfit:
            raise InvalidInput(
                f"{log.path}: column {', '.join(unfit)}; ids are integers, text or lists of these: convert or exclude the column"
            )
        return kinds


def matching(pattern: str, names: Collection[str]) -> list[str]:
    """The names that a name or a pattern such as `I*` fits; an existing name fits itself alone, even if it has pattern marks."""
    return [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]


def _check_names(log: LogReader) -> None:
    names = log.schema.names
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InvalidInput(f"{log.path}: column '{twice[0]}' occurs twice; column names must be unique")
    for position, name in enumerate(names, start=1):
        if not name or not name.isprintable():
            raise InvalidInput(f"{log.path}: column {position} is named {name!r}, must be printable text; rename it")


def _listed(items: Iterable[str]) -> str:
    texts = list(items)
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more
