"""The constraints on a plan, per table and between tables."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from shardwright.errors import InvalidInput
from shardwright.task.quantities import checked_flag, checked_whole, did_you_mean, known_name, list_of, text, whole

SHARDING_TYPES = (
    "table_wise",
    "column_wise",
    "row_wise",
    "data_parallel",
    "table_row_wise",
    "grid",
    "tiered",
)


UNCUT_TYPES = ("table_wise", "data_parallel", "tiered")
"""Sharding types that can leave a table in one block."""


@dataclass(frozen=True)
class TableConstraint:
    """Limits on one table. Lists, sets, ranges and arrays of types or ranks become tuples; NumPy numbers become ints.

    Attributes:
        sharding_types: the allowed sharding types; None allows all.
        devices: the only ranks that may hold a part of the table; None allows all.
        max_shards: most shards the table may be cut into; None for no limit.
        min_columns: fewest columns of a block if the table is cut into columns; None for no limit.
        max_columns: most columns of a block if the table is cut into columns; needs equal_columns. None for no limit.
        equal_rows: whether row blocks must be equal, one on each device of the cluster or of one host, as TorchRec runs them.
        equal_columns: whether all column blocks must have one width, as TorchRec loads from checkpoints; a device may hold several.
        column_multiple: the columns of every block must be a multiple of this, if the table is cut into columns; None for no limit.
            A table whose dim is no multiple of it may not be cut into columns.
    """

    sharding_types: tuple[str, ...] | None = None
    devices: tuple[int, ...] | None = None
    max_shards: int | None = None
    min_columns: int | None = None
    equal_rows: bool = False
    column_multiple: int | None = None
    equal_columns: bool = False
    max_columns: int | None = None

    def __post_init__(self) -> None:
        if self.sharding_types is not None:
            object.__setattr__(self, "sharding_types", _checked_types(self.sharding_types))
        if self.devices is not None:
            object.__setattr__(self, "devices", _checked_ranks(self.devices))
        for field_name in ("max_shards", "min_columns", "max_columns", "column_multiple"):
            value = getattr(self, field_name)
            if value is not None:
                object.__setattr__(self, field_name, checked_whole(value, f"constraints: {field_name}"))
        for field_name in ("equal_rows", "equal_columns"):
            object.__setattr__(self, field_name, checked_flag(getattr(self, field_name), f"constraints: {field_name}"))
        if self.max_columns is not None and not self.equal_columns:
            raise InvalidInput(
                f"constraints: max_columns is {self.max_columns} without equal_columns; set equal_columns to true, or leave max_columns out"
            )
        if self.max_shards == 1 and not any(map(self.allows, UNCUT_TYPES)):
            raise InvalidInput(
                f"constraints contradict each other: max_shards is 1 and sharding_types is {list(self.sharding_types or ())}, "
                "which cut a table; allow more shards or table_wise"
            )

    @property
    def as_torchrec(self) -> bool:
        """Whether blocks must be cut as TorchRec cuts them."""
        return self.equal_rows and self.equal_columns

    def allows(self, sharding_type: str) -> bool:
        """Whether the table may be sharded this way."""
        return self.sharding_types is None or sharding_type in self.sharding_types


_SPELT = {f"{part}wise": f"{part}_wise" for part in ("row", "column", "table")} | {"table_rowwise": "table_row_wise"}


def _checked_types(value: object) -> tuple[str, ...]:
    kinds = list_of(text, value)
    if kinds is None:
        raise InvalidInput(
            f"constraints: sharding_types is {reprlib.repr(value)}, must be a list, tuple or set of names such as ('row_wise',)"
        )
    if not kinds:
        raise InvalidInput("constraints: sharding_types is empty, so no plan is allowed; name at least one type")
    known = [known_name(kind, SHARDING_TYPES, _SPELT) for kind in kinds]
    types = tuple(name for name in known if name is not None)
    if len(types) < len(kinds):
        unknown = kinds[known.index(None)]
        raise InvalidInput(
            f"constraints: unknown sharding type {unknown!r}; known types are {', '.join(SHARDING_TYPES)}"
            f"{did_you_mean(unknown, SHARDING_TYPES)}"
        )
    return types


def _checked_ranks(value: object) -> tuple[int, ...]:
    ranks = list_of(whole, value)
    if ranks is None:
        raise InvalidInput(
            f"constraints: devices is {reprlib.repr(value)}, must be a list, tuple, set or range of ranks, which are whole numbers, "
            "such as (0, 1)"
        )
    if not ranks or min(ranks) < 0:
        raise InvalidInput(f"constraints: devices is {list(ranks)}, must name at least one rank, none negative")
    return ranks


ANY = TableConstraint()


class _Limits(Mapping[str, TableConstraint]):
    """Immutable limits by table name. Unlike a dict it cannot be changed; unlike a view of a dict it can be hashed, pickled and copied."""

    def __init__(self, limits: Mapping[str, TableConstraint]) -> None:
        self._limits = dict(limits)

    def __getitem__(self, table: str) -> TableConstraint:
        return self._limits[table]

    def __iter__(self) -> Iterator[str]:
        return iter(self._limits)

    def __len__(self) -> int:
        return len(self._limits)

    def __hash__(self) -> int:
        return hash(frozenset(self._limits.items()))

    def __repr__(self) -> str:
        return repr(self._limits)


@dataclass(frozen=True)
class Constraints:
    """All limits of a task.

    Attributes:
        tables: limits by table name; an immutable copy of the given mapping.
        colocate: groups of tables; all tables of a group lie on the same set of devices.
        apart: groups of tables; no two tables of a group share a device.
    """

    tables: Mapping[str, TableConstraint] = field(default_factory=dict)
    colocate: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", _Limits(self.tables))
        for field_name in ("colocate", "apart"):
            groups = tuple(tuple(group) for group in getattr(self, field_name))
            lonely = next((group for group in groups if len(set(group)) < 2), None)
            if lonely is not None:
                raise InvalidInput(f"constraints: {field_name} {list(lonely)} must name at least two different tables")
            object.__setattr__(self, field_name, groups)

    def of(self, table: str) -> TableConstraint:
        """The limits of one table."""
        return self.tables.get(table, ANY)

    def colocated_groups(self) -> list[frozenset[str]]:
        """Disjoint groups of at least two tables that must share their devices; groups with a common table are merged."""
        groups: list[set[str]] = []
        for names in map(set, self.colocate):
            touching = [group for group in groups if group & names]
            groups = [group for group in groups if not group & names] + [names.union(*touching)]
        return [frozenset(group) for group in groups if len(group) > 1]

    def apart_pairs(self) -> set[frozenset[str]]:
        """All pairs of tables that may not share a device."""
        return {frozenset(pair) for names in self.apart for pair in combinations(sorted(set(names)), 2)}

    def check(self, table_names: Iterable[str], devices: int) -> None:
        """Check the constraints against the task's tables and device count, and for contradictions.

        Raises:
            InvalidInput: a table or rank does not exist, or two constraints cannot both hold.
        """
        known = set(table_names)
        named = [*self.tables, *(n for group in (*self.colocate, *self.apart) for n in group)]
        for name in named:
            if name not in known:
                raise InvalidInput(
                    f"constraints: table {name!r} is not in the task; name one of its {len(known)} tables"
                )
        for name, limits in self.tables.items():
            beyond = [rank for rank in limits.devices or () if rank >= devices]
            if beyond:
                raise InvalidInput(
                    f"constraints: table '{name}' is pinned to rank {beyond[0]}, the topology has ranks 0 to {devices - 1}; "
                    "name ranks of this range, or enlarge the topology"
                )
        self._check_apart(devices)
        self._check_groups()

    def _check_groups(self) -> None:
        for group in self.colocated_groups():
            clash = next((common for names in self.apart if len(common := sorted(group.intersection(names))) > 1), None)
            if clash:
                raise InvalidInput(
                    f"constraints contradict each other: {' and '.join(clash[:2])} are to be colocated and kept apart; drop one of the two"
                )
            pinned = [set(limits.devices) for name in group if (limits := self.of(name)).devices is not None]
            if pinned and not set.intersection(*pinned):
                raise InvalidInput(
                    f"constraints contradict each other: {', '.join(sorted(group))} are to be colocated "
                    "but pinned to devices without a common rank; pin them to at least one common rank"
                )

    def _check_apart(self, devices: int) -> None:
        for names in self.apart:
            together = set(names)
            pinned = [set(limits.devices) for name in together if (limits := self.of(name)).devices is not None]
            room = len(set().union(*pinned)) if len(pinned) == len(together) else devices
            if len(together) > room:
                raise InvalidInput(
                    f"constraints contradict each other: {len(together)} tables are to be kept apart on {room} devices; "
                    "allow at least as many devices as tables"
                )
            alone: dict[int, str] = {}
            for name in (name for name in names if len(set(self.of(name).devices or ())) == 1):
                (rank,) = set(self.of(name).devices or ())
                if alone.setdefault(rank, name) != name:
                    raise InvalidInput(
                        f"constraints contradict each other: {alone[rank]} and {name} are to be kept apart "
                        f"but both pinned to rank {rank}; pin one to another rank"
                    )
