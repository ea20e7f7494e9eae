r"""A proven lower bound on the step time of every plan.

Scope. All devices are of one type, and every table is in one of these ways, as far as its constraints and the memory of single devices
allow: whole; in column blocks (of multiples of 4 columns if the dim is one, or of the multiples that a constraint asks for); in row blocks
whose borders lie on a grid of 16 parts of the table (from 1,024 rows on; if all devices, or those of a host, hold as many, one border may
lie a row beside the grid); in row blocks of equal size (to a row, or as TorchRec cuts them under `equal_rows`) over 2, 4, 8, … devices,
over as many as a host has, over those the table is pinned to, or over all; in column blocks of one width, each cut in one of these ways; or
replicated on every device. Memory filled by several tables, pinning, colocation and separation only remove plans. The bound ignores them
otherwise, and so stays valid.

Proof. A device makes some of the K kinds of fused calls that the task's tables and their ways allow. Let z_k be the sum of vectors in call
k, and f(z_k) the forward + backward time of the call, which is convex. A device in use makes at least one call and takes the sum of f(z_k)
over its calls. A hidden unit of f costs m · max(0, a) = max over λ in [0, 1] of λ · m · a, so for every λ in [0, 1]^(K h)

    f(z_k)  ≥  c_k + s_k · z_k,    c_k = Σ_h λ_kh m_h b_h + bias of the head,    device  ≥  C + Σ_k s_k · z_k,

where C is the least Σ c_k over the calls that a device may make: a call that is not made has neither c_k nor z_k. A call that holds only
replicas on all devices is made by all devices or by none. Let U be the devices that make another call as well. If everything is replicated,
that is one plan, and it is priced exactly. Otherwise the slowest device takes at least the mean of U, and each device of U pays for the
replicas' calls and for at least one more. (Tables of different kinds need separate calls. Their number over D counts in C if it exceeds
one.) The step time is a sum over phases of maxima over devices, and a maximum is at least a mean. Of two link classes the slower counts. So
for every mix of the link classes, and D devices all in U,

    step  ≥  C + latency + (1 / D) Σ over tables of price_λ(the way in which the plan makes the table)

This is Jensen's inequality: at the best λ, c_k + s_k · z is the tangent of f at the mean device. Each price_λ is linear in the vectors and
bytes. It is at least its minimum over the ways the table may be cut: a shortest path over widths. Replicas count if they gain more than
the c_k of their call. The right side is a bound for any λ. The best λ is the dual solution of a linear program over mixtures of ways, which
is solved by column generation: the tables' cheapest ways at the λ so far are the columns of the next program (one column for each of a few
groups of tables). If U has u devices, kernels other than the replicas' count 1 / u instead of 1 / D. The least over ways is concave in
1 / u, so it lies at u = D or at u = 1, and the smaller of both is the bound.

Tightening. Suppose a plan of step time T is known. Take a piece p and a set Q of phases. Any plan that holds p takes at least what p's
device spends on the phases in Q, plus the mean over devices of the other phases. The same program, with the other phases alone, bounds
that mean from below. On the phases in Q, p's device spends at least, for every λ, (constant) + price_λ(p) + Σ over tables of min(0, the
least that any part of the table can add), and p's own bytes on the links. If the whole exceeds T, no better plan holds p. So p is struck
out, and the bound of what is left, or T if that is lower, holds for all plans. Every table must be cut somehow: a way's figure is the
largest over its pieces, and the smallest over the table's ways is a bound too. It binds if one table dominates.

Ranges. Let E be the kernel time of a plan: its slowest forward kernels plus its slowest backward kernels. If E is in [a, b], no piece of
the plan keeps its device's kernels busy for more than b. And E is at least a and at least the mean device's kernels, so at least any mean
of the two. Each range has a separate bound over the remaining pieces, and the least of these holds for all plans.

Holders. The bound so far considers the mean device, which has a share of every table. But a table that takes most of a device's time fits
on few devices only as far as these have time left in every phase, and spreading it over many devices costs more. The mean device shows
neither. So take a table, and the plans in which k of D devices hold it. In each phase p the slowest device takes at least the mean of the k
holders, and at least the mean of the others. So for every weight μ_p in [0, 1] it takes at least

    M_p  ≥  μ_p · (mean of the holders) + (1 − μ_p) · (mean of the others).

As above, a device takes at least a_p + Σ of the loads of its pieces, linear at fixed λ. So every other table takes its cheapest way, with
each piece where it is cheaper: with the holders at its loads times μ / k, with the others at its loads times (1 − μ) / (D − k). The table
itself has at least k pieces, all with the holders. All devices send ids except the one that holds the piece, and those of its host send
theirs over the faster links: they are P - 1 devices, all with the holders or all with the others, whichever weighs more. The right side is
concave in μ, so cutting planes find the best μ; any μ proves. The bound is the least over k, and over the table being replicated.

The numbers of holders are searched by ranges k₁ … k₂. The range of the least value is halved until it is a single number or time is up. For
a range, a holder counts μ / k₂ and another device (1 − μ) / (D − k₁), the least that a load can count there. Ids count as for k₁ holders
and D − k₂ others, since ids that a device need not send are subtracted.

If the value of a range is no less than the step of a known plan, no better plan has so many holders. If all ranges up to k are refuted, the
table has more than k holders, and the values of the other tables take that into account.

Gates. On a GPU a call's widest block sets the price of all its lookups, which is not convex. But the devices whose call has a block wider
than a gate's width are holders as above. All such blocks lie with them, and every narrower block of the call pays the gate's ms there, with
those of the gates for lesser widths. The bound is the least over the number of these devices, and over no block being so wide.

Width classes. Gates bind together: a device that holds blocks of 256 columns opens all of them. Let class k hold the devices whose widest
block of one call opens k gates, idle devices in class 0. For a vector of whole numbers n_k of devices, every block lies in a class that is
at least as wide as itself, pays the gates there, and counts 1 / n_k in the mean of that class. With weights of the classes' means in place
of μ and 1 - μ, all of the above holds, and the bound is the least over all vectors. On up to 8 devices there are 165 of them: each is
valued once, then the lowest is raised as long as possible.

Branches. Every plan needs some selection of sets of collectives. In it a hot table lies in single blocks, or in several at once (equal row
blocks, grids), or it is replicated. A mixture of these costs less than each of them, as it needs only a part of a set, and of the replicas'
call. So plans are divided by the sets that they need, if these wait long, and then by the kind of way of one hot table after another. All
of the above holds for a branch with the ways that it leaves, and the bound is the least over the branches. The branch with the lowest
bound is divided first.

Overlap. Dense layers may hide values, ids and gradients for v, i and g ms (`cost.score`). The forward collectives of a device then take
max(0, V - v, I - i, J - v - i), each of V, I and J a maximum over the link classes. So the weights of all these lines sum to at most 1,
and each line subtracts what it hides. The program finds these weights as well.

Two details keep this safe. Loads count as at least 0: the most that they can be below 0, for all tables together, is subtracted from a_p.
And the mean of the others' kernels is over those that make a call. If none does, the holders do everything, which is no less than the
weighted sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count, pairwise

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.model import CostModel
from shardwright.cost.prices import (
    ALL_PHASES,
    KINDS,
    Prices,
    first_prices,
    pass_ms,
    piece_links,
)
from shardwright.search.engine.catalog import Catalog, make_catalog
from shardwright.search.holders import Holders
from shardwright.search.master_program import MasterProgram
from shardwright.search.relaxation import COPIED, WAY_KINDS, Branch, Choice, Relaxation, least_calls
from shardwright.search.width_classes import WidthClasses
from shardwright.sharding.costs import KERNELS, LINKS
from shardwright.task.task import Task

_ROUNDS = 40
_EXACT = 1e-4  # share of the bound: distance of program and bound at which the search for prices ends
_GROUPS = 50
_STALLED = 2
_PROBES = 8
_KERNEL_RANGES, _WEIGHTS = 10, (1.0, 0.5, 0.0)  # weights of the mean device's kernels against the low end of a range
_HOT = 0.25  # share of one device's step from which a table's holders are counted
_CASES_MATTER = 0.05  # share of a step by which the latencies of cases must differ for each to get a separate proof
_PARTS = 3  # of the proof of a branch: prices, kernels, holders
_DIVIDED, _IDLE = 40, 8  # most branches that are divided, in all and in a row without a gain
_BRANCHED, _BRANCHED_WITH_GATES = 2_000, 400  # the same, times tables: a proof takes longer with more
_OWN_PHASES = np.array([[1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 1]], dtype=np.float64)


@dataclass(frozen=True)
class Bound:
    """A proven bound.

    Attributes:
        ms: no plan of the task has a smaller step time.
        prices: the prices behind the bound.
        choice: each table's cheapest way at these prices: a hint for cutting and replicating.
        by: the part of the proof that gave the bound: "prices", "pieces" alone, ranges of "kernels", "holders" of a hot table,
            "classes" of widths, or the "sets" of collectives.
    """

    ms: float
    prices: Prices
    choice: Choice
    by: str = "prices"


def lower_bound(task: Task, cost_model: CostModel) -> Bound | None:
    """A bound on the step time of every plan of the task; None if the cost model is not convex."""
    if not cost_model.pricing.convex:
        return None
    return BoundProof(make_catalog(task, cost_model), cost_model).solve()


class BoundProof:
    """The bound of a task, which better plans tighten.

    Args:
        catalog: the ways to make the task's tables.
        cost_model: a convex one.

    Attributes:
        replicated_ms: step of the plan that replicates all tables; infinite if it is not allowed.
    """

    def __init__(self, catalog: Catalog, cost_model: CostModel) -> None:
        self._task, self._pricing = catalog.task, cost_model.pricing
        self._relaxation = Relaxation(catalog)
        self.replicated_ms = self._relaxation.all_replicated_ms(self._pricing)
        self._mix = self._pricing.mix.sum(axis=0)
        self._others: dict[tuple[bytes, int, int, Branch], float] = {}
        self._of_branches: dict[Branch, Bound] = {}

    def solve(self, phases: Floats = ALL_PHASES, deadline: float | None = None) -> Bound:
        """The best bound over the pieces that are left.

        Args:
            phases: `(4,)` 0 for phases that do not count.
            deadline: `time.monotonic()` at which the bound so far is returned; None for no limit.
        """
        tables = self._relaxation.tables
        group = np.arange(tables) % min(tables, _GROUPS)
        prices = first_prices(self._task, self._pricing.mix, self._relaxation.calls, phases)
        program = MasterProgram(self._relaxation, self._pricing, int(group.max()) + 1, phases)
        best: Bound | None = None
        before = stalled = 0.0
        for _ in range(_ROUNDS):
            value, choice = self._value(prices, phases)
            if best is None or value > best.ms:
                best = Bound(value, prices, choice)
            if not np.isfinite(best.ms) or (deadline is not None and time.monotonic() >= deadline):
                break
            program.add(*self._relaxation.sums(choice, group, program.groups))
            solved = program.solve()
            if solved is None:  # the bound so far stands
                break
            least, prices = solved
            # If numbers span many decades, the solver's tolerance keeps the two apart, and further rounds bring nothing.
            stalled = stalled + 1 if abs(least - best.ms - before) <= _EXACT * abs(before) else 0
            before = least - best.ms
            if least - best.ms <= _EXACT * max(least, 0.0) or stalled == _STALLED:
                break
        assert best is not None
        # The tables' least cost is concave in the share of devices in use, so its minimum lies at one of the ends.
        proven = min(best.ms, self._value(best.prices, phases, in_use=1)[0], self.replicated_ms)
        return Bound(proven, best.prices, best.choice)

    def tightened(self, bound: Bound, step_ms: float) -> Bound:
        """Tighten the bound, given that a plan of `step_ms` exists; the result is at most `step_ms`."""
        of_phases = [self._least_step_with(bound.prices, own) for own in _OWN_PHASES]
        pieces, others = (np.max([of_phase[kind] for of_phase in of_phases], axis=0) for kind in range(2))
        binding = self._relaxation.least_binding(pieces, others.max(axis=0))
        doomed = self._relaxation.legal & (pieces > step_ms)
        others_doomed = self._relaxation.other_legal & (others.max(axis=0) > step_ms)
        if doomed.any() or others_doomed.any():
            self._relaxation.legal[doomed] = False
            self._relaxation.other_legal[others_doomed] = False
            pruned = self.solve()
            bound = replace(pruned, by="pieces") if np.isfinite(pruned.ms) and pruned.ms > bound.ms else bound
            binding = max(binding, pruned.ms)
        return self._raised(bound, step_ms, pieces=binding)

    def refined(self, bound: Bound, step_ms: float, late: Callable[[], bool]) -> Bound:
        """Tighten the bound, given a plan of `step_ms`: by kernels and holders, for each branch of plans; see "Branches".

        Best first: only the branch that has the lowest bound is looked at, until that one cannot be raised.
        """
        waits, number = self._relaxation.sets.waits.sum(axis=1), count()
        cases_matter = waits.size and waits.max() - waits.min() >= _CASES_MATTER * step_ms
        queue = [(bound.ms, 0, next(number), Branch(), bound)]
        left = min(_DIVIDED, (_BRANCHED_WITH_GATES if self._pricing.gates else _BRANCHED) // self._relaxation.tables)
        lowest, idle = bound.ms, 0
        while queue[0][0] < step_ms and not late():
            least, part, _, branch, of_branch = heappop(queue)
            if part < _PARTS:
                of_branch = replace(of_branch, ms=max(least, of_branch.ms))
                of_branch = self._part_of_proof(part, branch, of_branch, step_ms, late)
                heappush(queue, (max(least, of_branch.ms), part + 1, next(number), branch, of_branch))
                continue
            if branch == Branch() and cases_matter:
                for case, of_case in self._least_by_sets(bound):
                    heappush(queue, (max(least, of_case), 0, next(number), Branch(case), of_branch))
                continue
            table = self._undecided(branch, of_branch, step_ms)
            lowest, idle = (least, 0) if least > lowest * (1 + _EXACT) else (lowest, idle + 1)
            if left == 0 or idle > _IDLE or table is None:
                heappush(queue, (least, part, next(number), branch, of_branch))
                break
            left -= 1
            for kind in WAY_KINDS:
                of_kind = Branch(branch.case, (*branch.decided, (table, kind)))
                heappush(queue, (least, 0, next(number), of_kind, of_branch))
        least, part, _, branch, of_branch = queue[0]
        raised = self._raised(bound, step_ms, sets=least)
        return replace(raised, by=of_branch.by) if (part > 1 or branch.decided) and of_branch.by != "prices" else raised

    def _part_of_proof(
        self, part: int, branch: Branch, bound: Bound, step_ms: float, late: Callable[[], bool]
    ) -> Bound:
        """The bound of a branch after the next part of its proof: prices, kernels, or holders."""
        if part == 0:
            solved = bound if branch == Branch() else self._of_branch(branch)
            return solved if solved.ms > bound.ms else replace(solved, ms=bound.ms, by=bound.by)
        with self._relaxation.only(branch):
            if part == 1:
                return self._by_kernels(self.tightened(bound, step_ms), step_ms)
            return self._by_holders(bound, step_ms, late)

    def _undecided(self, branch: Branch, bound: Bound, step_ms: float) -> int | None:
        """The hottest table whose kind of way a branch leaves open; None if no hot table is left."""
        decided = {table for table, _ in branch.decided}
        return next((table for table in self._hot(bound, step_ms) if table not in decided), None)

    def _hot(self, bound: Bound, step_ms: float) -> list[int]:
        """The tables that take much of one device, hottest first."""
        price = bound.choice.price
        return [table for table in np.argsort(-price, kind="stable").tolist() if price[table] >= _HOT * step_ms]

    def _by_holders(self, bound: Bound, step_ms: float, late: Callable[[], bool]) -> Bound:
        """Tighten the bound by the number of devices that hold a hot table."""
        copied = {table for table, kind in self._relaxation.branch.decided if kind == COPIED}
        hot = [table for table in self._hot(bound, step_ms) if table not in copied]
        holders = Holders(self._relaxation, self._pricing, bound.prices)
        bound = self._raised(bound, step_ms, holders=holders.bound(hot, step_ms, bound.ms, late))
        if not self._pricing.gates:
            return bound
        return self._raised(bound, step_ms, classes=WidthClasses(holders).bound(step_ms, bound.ms, late))

    def prices_alone(self, deadline: float | None) -> Prices | None:
        """The prices of the same ways in a step without dense layers; None if these hide nothing."""
        relaxation, hidden = self._relaxation, self._relaxation.hidden
        if not hidden.any():
            return None
        relaxation.hidden = np.zeros(3)
        try:
            return self.solve(deadline=deadline).prices
        finally:
            relaxation.hidden = hidden

    @property
    def sets(self) -> list[frozenset[int]]:
        """The selections of sets of collectives that plans may need."""
        return self._relaxation.sets.cases

    def by_sets(self, bound: Bound, step_ms: float, late: Callable[[], bool]) -> list[tuple[int, Bound]]:
        """Bounds of the plans that need each selection of sets of collectives, lowest first, as far as they are below `step_ms`.

        Selections whose latencies alone give a sufficient bound, or for which no time is left, get no prices of their own.
        """
        cases = []
        for case, least in self._least_by_sets(bound):
            of_case = bound if least >= step_ms or late() else self._of_branch(Branch(case))
            cases.append((case, replace(of_case, ms=max(of_case.ms, least))))
        return sorted((entry for entry in cases if entry[1].ms < step_ms), key=lambda entry: entry[1].ms)

    def _least_by_sets(self, bound: Bound) -> list[tuple[int, float]]:
        """Each case of sets of collectives, and a bound of its plans that the latencies alone give; lowest first."""
        relaxation = self._relaxation
        weights = bound.prices.links.sum(axis=1)
        beside = bound.ms - relaxation.least_waits(weights) if bound.by == "prices" else 0.0
        least = np.maximum(bound.ms, beside + (relaxation.sets.waits - relaxation.hidden) @ weights)
        return [(case, float(least[case])) for case in np.argsort(least, kind="stable").tolist()]

    def _of_branch(self, branch: Branch) -> Bound:
        """The bound of the plans of a branch; found once, though it rises as pieces are struck out."""
        if branch not in self._of_branches:
            with self._relaxation.only(branch):
                self._of_branches[branch] = self.solve()
        return self._of_branches[branch]

    def _raised(self, bound: Bound, step_ms: float, **parts: float) -> Bound:
        """The bound, raised to the largest that parts of the proof have found (the first of equals); at most a known plan's step."""
        by = max(parts, key=lambda part: parts[part])
        ms = min(max(bound.ms, parts[by]), step_ms, self.replicated_ms)
        return replace(bound, ms=ms, by=by if parts[by] > bound.ms else bound.by)

    def _by_kernels(self, bound: Bound, step_ms: float) -> Bound:
        """Tighten the bound by ranges of kernel time; see "Ranges" in the module's docstring."""
        relaxation, (legal, other_legal) = self._relaxation, (self._relaxation.legal, self._relaxation.other_legal)
        pieces, others = self._least_kernels_with(bound.prices, _OWN_PHASES[2])
        least, links = (self.solve(own).ms for own in (_OWN_PHASES[2], _OWN_PHASES[1]))
        if not np.isfinite(least + links):
            return bound
        least_ms = step_ms
        for low, high in pairwise(np.linspace(least, max(step_ms - links, least), _KERNEL_RANGES + 1)):
            relaxation.legal, relaxation.other_legal = (
                legal & (pieces <= high),
                other_legal & (others.max(axis=0) <= high),
            )
            in_range = 0.0
            for weight in _WEIGHTS:
                if in_range < least_ms:
                    of_mean = self.solve(_OWN_PHASES[1] + weight * _OWN_PHASES[2]).ms
                    in_range = max(in_range, of_mean + (1 - weight) * float(low))
            least_ms = min(least_ms, in_range)
        relaxation.legal, relaxation.other_legal = legal, other_legal
        return self._raised(bound, step_ms, kernels=least_ms)

    def _value(self, prices: Prices, phases: Floats, in_use: int | None = None) -> tuple[float, Choice]:
        """The bound that prices prove for plans that use `in_use` devices, by default all; and the tables' choices at these prices.

        A device counts as used if it holds more than the replicas that all devices hold.
        """
        made, devices, relaxation = self._intercepts(prices, phases), self._task.topology.devices, self._relaxation
        choice = relaxation.cheapest(prices, made * devices, devices / (in_use or devices))
        others = least_calls(np.delete(made, relaxation.everywhere), relaxation.least_made)
        calls = made[choice.everywhere].sum() + others
        shared, waits = float(choice.price.sum()) / devices, relaxation.least_waits(prices.links.sum(axis=1))
        return float(calls + self._pricing.once @ phases[KERNELS]) + shared + waits, choice

    def _intercepts(self, prices: Prices, phases: Floats) -> Floats:
        """`(calls,)` ms that making each fused call costs, vectors aside: the c_k of the proof."""
        intercepts: Floats = prices.vector[:, :-2] @ self._pricing.hidden_bias + self._pricing.bias @ phases[KERNELS]
        return intercepts

    def _least_step_with(self, prices: Prices, own: Floats) -> tuple[Floats, Floats]:
        """Least step ms of a plan in which some device holds a piece `(pieces,)`, or a larger or smaller part of another way `(2, others)`.

        The phases that `own` `(4,)` counts are those of that device, the other phases those of the mean device.
        """
        rest = 0.0 if own.all() else self._of_others(own)
        pieces, others = self._least_kernels_with(prices, own)
        links = self._own_links(piece_links(self._relaxation.least_served()), own)
        of_others = [self._own_links(part, own) for part in self._relaxation.other.part_links]
        return rest + pieces + links, rest + others + np.stack(of_others)

    def _least_kernels_with(self, prices: Prices, own: Floats) -> tuple[Floats, Floats]:
        """As `_least_step_with`, but counting only the kernels in `own`, on the device that holds the piece or part."""
        costs, mix = self._relaxation.catalog.forms.costs, own[KERNELS] @ self._pricing.mix
        pieces, others = np.zeros(len(costs.vectors)), np.zeros((2, self._relaxation.other.table.size))
        if own[KERNELS].any():
            bias, calls = self._pricing.hidden_bias, len(prices.vector)
            hidden = costs.vectors[:, :-2] + bias
            largest = np.argsort(-(np.maximum(hidden, 0) @ mix), kind="stable")
            probes = largest[: max(1, largest.size // 8) : max(1, largest.size // (8 * _PROBES))]
            active = np.divide(prices.vector[:, :-2], self._mix, out=np.zeros((calls, mix.size)), where=self._mix > 0)
            idle = np.tile(bias > 0, (calls, 1)).astype(np.float64)
            alone = [np.where(np.arange(calls)[:, None] == costs.call[row], hidden[row] > 0, idle) for row in probes]
            linear = np.tile(own[KERNELS], (calls, 1))
            slopes = [np.hstack([mix * share, linear]) for share in (active, *alone)]
            for of_pieces, of_others in self._least_device_with(slopes, own):
                pieces, others = np.maximum(pieces, of_pieces), np.maximum(others, of_others)
        return pieces, others

    def _of_others(self, own: Floats) -> float:
        """Least ms of the mean device on the phases that `own` does not count, over the pieces that are left."""
        relaxation = self._relaxation
        left = int(relaxation.legal.sum()), int(relaxation.other_legal.sum())
        key = (own.tobytes(), *left, relaxation.branch)  # ways are only struck out: their number says which are left
        if key not in self._others:
            self._others[key] = max(0.0, self.solve(ALL_PHASES - own).ms)
        return self._others[key]

    def _least_device_with(self, slopes: Sequence[Floats], phases: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Least kernel ms of a device with a piece `(pieces,)`, or with a part of another way `(2, others)`, with any other pieces on it.

        Yields a pair for each of several `(calls, h + 2)` slopes; all are priced in one pass over the pieces.
        """
        forms = self._relaxation.catalog.forms
        whole = (forms.units * forms.columns)[forms.form] / forms.width
        other = self._relaxation.other
        on_one = other.parts / other.holders[:, 0]  # most parts on one device
        every_price = self._relaxation.piece_prices(np.stack(slopes))
        for slope, price in zip(slopes, every_price, strict=True):
            other_price = self._relaxation.other_prices(slope)
            discount = np.zeros(self._relaxation.tables)
            np.minimum.at(discount, forms.pieces.table, price * whole)
            np.minimum.at(discount, self._relaxation.other.table, other_price.min(axis=0) * on_one)
            made = self._intercepts(Prices(slope, np.zeros((3, 2))), phases)
            once = float(self._pricing.once @ phases[KERNELS])
            base = made - np.minimum(made, 0.0) + np.minimum(made, 0.0).sum() + discount.sum() + once
            yield base[forms.costs.call] + price, base[self._relaxation.other.call] + other_price

    def _own_links(self, links: Floats, own: Floats) -> Floats:
        """`(n,)` least ms that the holder of a part spends on links in the passes that `own` counts.

        The part adds `(n, 5)` link terms.
        """
        values, ids, apart, each = links[:, :2], links[:, 2:3], links[:, 3:], pass_ms(self._task, own=True)
        relaxation = self._relaxation
        forward = (np.maximum(values, ids) * each[0]).max(axis=1) + apart[:, 0]
        backward = (values * each[1]).max(axis=1) + apart[:, 1]
        both: Floats = own[LINKS] @ np.stack([forward, backward])
        if not relaxation.hidden.any():
            return both + relaxation.least_waits(own[KINDS])
        of_values, of_gradients, of_ids = relaxation.least_each
        lines = [
            forward + of_values + of_ids,
            (values * each[0]).max(axis=1) + apart[:, 0] + of_values,
            (ids * each[0]).max(axis=1) + of_ids,
            np.zeros(len(links)),
        ]
        hidden: Floats = own[LINKS] @ np.stack([np.max(lines, axis=0), np.maximum(backward + of_gradients, 0.0)])
        return hidden
