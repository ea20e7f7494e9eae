"""The native engine (`native/`): searches on arrays, without the interpreter's lock. Letters and terms are those of its headers."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.learned.priced.policy import Before, Layers
from shardwright.learned.priced.task import PricedTask
from shardwright.search import neuroshard
from shardwright.search.engine.catalog import EngineArrays, Home

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

TICKS: float
"""Ticks of a ms: `neuroshard` compares times in whole ones."""

class Stop:
    """When a search has to end: after some seconds (None for no limit), or when it is told. Counts the changes of the search."""

    def __init__(self, seconds: float | None = None) -> None: ...
    def set(self) -> None: ...
    @property
    def late(self) -> bool: ...
    @property
    def changes(self) -> dict[str, tuple[int, int]]:
        """How often each kind of change was tried, and taken."""

class Problem:
    """What stays the same in a search. The engine reads the fields of its arguments by name and keeps their arrays.

    Raises:
        ValueError: a field is missing, has another shape or type, is not contiguous, or breaks a rule.
    """

    def __new__(cls, arrays: EngineArrays, home: Home) -> Problem: ...

class Solution:
    """Where each piece of each item lies, and what every device then costs; a value.

    Raises:
        ValueError: a call breaks a rule, such as placing a piece twice.
        IndexError: there is no such piece, item, device, form or spread.
    """

    def __init__(self, problem: Problem) -> None: ...
    def copy(self) -> Solution: ...
    @property
    def live(self) -> int:
        """Pieces in use."""
    @property
    def form(self) -> Ints: ...
    @property
    def width(self) -> Ints: ...
    @property
    def device(self) -> Ints:
        """`(live,)` where each piece lies, or -1; `form` and `width` likewise."""
    @property
    def pieces_of(self) -> Ints: ...
    @property
    def spread_of(self) -> Ints:
        """`(items,)` the spread that each lies in, or -1; `pieces_of`: how many pieces it has."""
    @property
    def used(self) -> Ints: ...
    @property
    def objective(self) -> Floats: ...
    @property
    def times(self) -> Floats:
        """`(d, 4)` ms: forward, forward links, backward links, backward; as the last `refresh` left them."""
    @property
    def room(self) -> int:
        """Pieces that there is room for beside those in use."""
    def add(self, form: int, width: int) -> int: ...
    def drop(self, piece: int) -> None: ...
    def place(self, piece: int, device: int) -> None: ...
    def lift(self, piece: int) -> None: ...
    def take_spread(self, item: int, spread: int) -> None: ...
    def clear(self, item: int) -> None: ...
    def width_on(self, item: int, device: int) -> int: ...
    def piece_on(self, item: int, device: int) -> int: ...
    def may_lie(self, item: int, device: int) -> bool: ...
    def spread_fits(self, spread: int) -> bool: ...
    def refresh(self) -> None: ...
    def step_ms(self) -> float: ...
    def value(self) -> float:
        """Step time, and the price of what moves beyond what every plan moves; `refresh` is part of it."""
    def received_ms(self) -> float: ...
    def set_objective(self, squarings: int) -> None: ...
    def choose(self, rank: Floats, uses: Ints, spread_rank: Floats) -> int:
        """Give every item its best way; an item without any, or -1."""
    def place_greedily(self, memory_weight: float = 0.0, together: bool = False) -> int:
        """Place all pieces that lie nowhere; the first for which no device was left, or -1."""
    def join(self) -> None: ...
    def best_transfer(self, one: int, target: int, least: float, may_cut: bool) -> tuple[float, int, int, int]:
        """Gain in ms, piece (-1 for none), form and units."""
    def best_swap(self, one: int, target: int, least: float) -> tuple[float, int, int]: ...
    def transfer(self, piece: int, form: int, units: int, target: int) -> None: ...
    def swap(self, mine: int, other: int) -> None: ...
    def descend(self, squarings: int, widest: int, stop: Stop) -> int: ...
    def respread(self, stop: Stop) -> int: ...
    def widen(self) -> None: ...
    def improve(self, stop: Stop) -> None: ...
    def without_copies(self, replicated: Bools, stop: Stop) -> Solution | None: ...
    def simplify(self, worse: float, cut_error: float, stop: Stop) -> None: ...
    def kicks(
        self, ms: float, count: int, bold: bool, seed: Sequence[int], stop: Stop
    ) -> tuple[Solution | None, float]:
        """Kicks in a row: the best solution seen, if it is better, and the value of what this one has become."""

class Pieces:
    """The inputs of NeuroShard's inner search, read as those of `Problem`."""

    def __new__(cls, pieces: neuroshard.Pieces) -> Pieces: ...

def greedy(pieces: Pieces, state: Ints, limit: int) -> tuple[int, int, Ints]:
    """How many pieces found a device, the most columns on one, and `(n,)` the devices."""

def grid_placements(pieces: Pieces, state: Ints, limits: Ints) -> Ints:
    """`(k, n)` the different placements for limits `(g,)`, ascending; the highest limit first."""

def placement_times(pieces: Pieces, state: Ints, placements: Ints) -> tuple[Floats, Ints]:
    """`(k, d, 2)` kernel ms and `(k, d)` columns of placements `(k, n)`."""

def link_ticks(pieces: Pieces, state: Ints, device: Ints, embedding: bool) -> float:
    """Step, or embedding cost, of a placement `(n,)` by the link model."""

def best_by_links(pieces: Pieces, state: Ints, limits: Ints, embedding: bool) -> tuple[float, Ints]:
    """The lowest `link_ticks` of the grid's placements, and that placement."""

def place_by_policy(
    policy: Layers, task: PricedTask, before: Before, order: Ints, noise: Floats, copies: int, record: bool
) -> tuple[Ints, Floats, npt.NDArray[np.float32], npt.NDArray[np.float32], Floats, Floats]:
    """The fields of `learned.priced.policy.Placements`, but for its parts. `noise` `(n, j, d)` is of the last j copies."""

def cheapest_widths(first: Ints, price: Floats, fewest: Ints | None = None) -> tuple[Floats, Ints]:
    """Cut each form, into `(f,)` blocks or more, so that the sum of prices is smallest: `(f,)` sums, and `(rows,)` uses of each block."""

def least_bottlenecks(first: Ints, value: Floats) -> Floats:
    """Cut each form so that the largest value of a block is smallest: `(f,)` these values."""

def best_order(widths: Sequence[int], starts: Sequence[int], stops: Sequence[int]) -> Ints:
    """The order of pieces in which most units stay in `[start, stop)`, which their devices held."""

def find_codes(
    ids: Ints,
    ends: Ints,
    base: Ints,
    bits: Ints,
    before: Ints,
    ranked: Ints,
    stops: Ints,
    firsts: Ints,
    starts: Ints,
    parts: Ints,
    ranges: Ints,
    first_codes: Ints,
    codes: Ints,
    /,
) -> bool:
    """Write the codes of ids; whether one is out of range."""

def runs_by_place(
    codes: Ints,
    bags: Ints,
    first_bags: Ints,
    bits: int,
    counts: Ints,
    answers: Ints,
    questions: Ints,
    heads: Ints,
    order: Ints,
    /,
) -> None:
    """Sort codes of lookups in bags by place, and mark the first of each bag at a place; `order` may be empty."""

def sort_by_place(codes: Ints, bits: int, counts: Ints, order: Ints, inverse: Ints, questions: Ints, /) -> None:
    """Sort codes by what stands above their lowest bits; the last four are written."""
