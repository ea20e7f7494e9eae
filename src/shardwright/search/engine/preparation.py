"""What a search of a task starts from: the catalog, the bound and its prices, and the arrays of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwright._engine import Solution, cheapest_widths
from shardwright.arrays import Floats
from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask, ShardwrightError
from shardwright.search.bound import Bound, BoundProof, first_prices
from shardwright.search.engine.assembly import Assembly, assemble, shards_of
from shardwright.search.engine.blocks import Added
from shardwright.search.engine.catalog import Catalog, make_catalog
from shardwright.search.engine.session import Strain
from shardwright.search.relaxation import Prices, ms_per_byte, served_price
from shardwright.search.units import remedy_for
from shardwright.sharding.shard import Shard
from shardwright.task.constraints import ANY
from shardwright.task.task import Task

_TIGHTENINGS = 4


@dataclass(eq=False)
class Prepared:
    """A task made ready for a search.

    Attributes:
        task: the task.
        assembly: the arrays of the engine.
        strain: what pieces and spreads put on their devices.
        spread_price: `(spreads,)` ms times devices of each spread.
        price_ms: rough step time of a good plan: the bound, or what all items cost alone, shared out.
    """

    task: Task
    assembly: Assembly
    strain: Strain
    spread_price: Floats
    price_ms: float
    _proof: BoundProof | None = field(repr=False)
    _bound: Bound | None = field(repr=False)

    @property
    def bound_ms(self) -> float:
        """The bound, or 0 where the cost model is not convex."""
        return self._bound.ms if self._bound else 0.0

    def tighten(self, step_ms: float, *, late: bool = False) -> float | None:
        """The bound now that a plan of this step time is known; None where there is none.

        Args:
            step_ms: step time of a plan.
            late: time is up: the bound stays as it is.
        """
        if self._proof is None or self._bound is None:
            return None
        for _ in range(0 if late else _TIGHTENINGS):  # what is struck out may make more of the rest impossible
            before = self._bound.ms
            self._bound = self._proof.tightened(self._bound, step_ms)
            if self._bound.ms <= before * (1 + 1e-4):
                break
        return self._bound.ms

    def shards(self, solution: Solution | None) -> list[Shard]:
        """The shards of a full solution."""
        assert solution is not None
        return shards_of(self.task, self.assembly, solution)

    def name_of(self, item: int) -> str:
        """The tables of an item."""
        return ", ".join(self.task.tables[table].name for table in self.assembly.members[item])

    def remedy_of(self, item: int) -> str:
        """What would give an item room."""
        limits = [self.task.constraints.of(self.task.tables[table].name) for table in self.assembly.members[item]]
        remedy = remedy_for(next((one for one in limits if one != ANY), ANY), self.task.topology.hosts)
        alike = "give them the same sharding_types, since colocated tables are cut alike; or "
        return (alike if len(limits) > 1 else "") + remedy


def prepare(task: Task, cost_model: CostModel, deadline: float | None = None) -> Prepared:
    """Make a task ready for a search.

    Args:
        task: the task.
        cost_model: prices its shards.
        deadline: `time.monotonic()` at which the bound is not made tighter any more; None for no limit.

    Raises:
        InfeasibleTask: constraints and the memory of single devices leave no way for a table.
        ShardwrightError: the cost model predicted NaN.
    """
    catalog = make_catalog(task, cost_model)
    if not np.isfinite(catalog.forms.costs.vectors).all():
        raise ShardwrightError(
            f"cost model {cost_model.name} predicted NaN; it must predict finite times: train it again"
        )
    proof = BoundProof(catalog, cost_model) if cost_model.pricing.convex else None
    bound = proof.solve(deadline=deadline) if proof else None
    if bound is not None and not np.isfinite(bound.ms):
        raise InfeasibleTask(_no_way(task, bound))
    prices = bound.prices if bound else _prices_of_whole_tables(catalog, cost_model)
    assembly = assemble(catalog, cost_model, prices.vector, served_price(task.topology, prices))
    whole = assembly.arrays.price[assembly.whole]
    rough = max(float(np.maximum(whole, 0.0).sum()) / task.topology.devices, 1e-9)
    return Prepared(
        task,
        assembly,
        _strain(assembly, task, cost_model, prices),
        _spread_prices(assembly, task, prices),
        bound.ms if bound and bound.ms > 0 else rough,
        proof,
        bound,
    )


def _spread_prices(assembly: Assembly, task: Task, prices: Prices) -> Floats:
    arrays = assembly.arrays
    devices = np.array([ranks.size for ranks in assembly.spread_devices], dtype=np.float64)
    reduced = arrays.spread_reduced @ (prices.links[1] / np.array(task.topology.link_bandwidth) * 1e3)
    kernels = Added(arrays.spread_part, arrays.spread_call, arrays.spread_vectors).priced(prices.vector)
    each = kernels + arrays.spread_served @ served_price(task.topology, prices) + reduced
    total: Floats = devices * each
    return total


def _strain(assembly: Assembly, task: Task, cost_model: CostModel, prices: Prices) -> Strain:
    """Strain by phase, if every table takes its cheapest form."""
    arrays, pricing = assembly.arrays, cost_model.pricing
    both = pricing.mix.sum(axis=0)
    active = np.divide(prices.vector[:, :-2], both, out=np.zeros_like(prices.vector[:, :-2]), where=both > 0)
    ones = np.ones((len(active), 1))
    by_kernel = [np.hstack([pricing.mix[phase] * active, ones * np.eye(2)[phase]]) for phase in range(2)]
    forward, backward = prices.links @ ms_per_byte(task.topology)
    reduced = arrays.spread_reduced @ (prices.links[1] / np.array(task.topology.link_bandwidth) * 1e3)

    def by_phase(added: Added, served: Floats, reduced: Floats | float) -> list[Floats]:
        kernels = [added.priced(of_phase) for of_phase in by_kernel]
        return [*kernels, served.sum(axis=1) * forward, served[:, 0] * backward + reduced]

    _, uses = cheapest_widths(arrays.first, np.where(arrays.legal, arrays.price, np.inf))
    in_columns = int(arrays.first[arrays.most.size])
    pieces, spreads = np.zeros(uses.size), np.zeros(arrays.spread_bytes.size)
    of_pieces = by_phase(Added(arrays.part, arrays.call, arrays.vectors), arrays.served, 0.0)
    spread = Added(arrays.spread_part, arrays.spread_call, arrays.spread_vectors)
    of_spreads = by_phase(spread, arrays.spread_served, reduced)
    for ms, spread_ms in zip(of_pieces, of_spreads, strict=True):
        goal = float(ms[:in_columns] @ uses[:in_columns]) / task.topology.devices
        if goal > 0:
            pieces, spreads = np.maximum(pieces, ms / goal), np.maximum(spreads, spread_ms / goal)
    return Strain(pieces, spreads)


def _prices_of_whole_tables(catalog: Catalog, cost_model: CostModel) -> Prices:
    """Slopes of the head where all tables are whole and shared out evenly: for cost models without a bound."""
    pricing, costs, tables = cost_model.pricing, catalog.forms.costs, len(catalog.task.tables)
    whole = catalog.forms.first[1 : tables + 1] - 1
    sums = np.zeros((catalog.tables.calls, costs.vectors.shape[1]))
    np.add.at(sums, costs.call[whole], costs.vectors[whole] / catalog.task.topology.devices)
    prices = first_prices(catalog.task, pricing.mix, catalog.tables.calls)
    prices.vector[:, :-2] = pricing.mix.sum(axis=0) * (sums[:, :-2] + pricing.hidden_bias > 0)
    return prices


def _no_way(task: Task, bound: Bound) -> str:
    table = task.tables[int(np.argmax(np.isinf(bound.choice.price)))]
    return (
        f"table '{table.name}' ({table.rows} rows, dim {table.dim}) fits its devices in no way that its constraints allow: "
        f"{remedy_for(task.constraints.of(table.name), task.topology.hosts)}"
    )
