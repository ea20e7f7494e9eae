"""From a catalog to the arrays of the compiled search, and from its states back to shards."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.search.engine.blocks import Floats, Ints
from shardwright.search.engine.catalog import Bools, Catalog, row_units
from shardwright.search.engine.home import NO_HOME, Home
from shardwright.search.engine.items import allowed_devices, members_of, most_pieces, pieces_of, rivals_of, spreads_of
from shardwright.search.engine.links import link_facts
from shardwright.search.engine.ranges import first_units
from shardwright.search.engine.state import NOTHING, Setting, State
from shardwright.sharding.layout import even_cuts
from shardwright.sharding.shard import Shard
from shardwright.task.task import Task

_ROOM = 4  # pieces an item on average, before splits stop


@dataclass(frozen=True, eq=False)
class Assembly:
    """A search's arrays, and what its items are.

    Attributes:
        setting: what stays the same in the search.
        catalog: what it was made from.
        members: `(items,)` tables of each item: one, or a colocated group.
        forms: `(forms,)` which of the catalog's forms each form is; of a group that of its first table.
        spread_devices: of each spread the ranks.
        spread_replicated: of each spread whether they hold replicas.
        home: the plan to start from.
    """

    setting: Setting
    catalog: Catalog
    members: tuple[tuple[int, ...], ...]
    forms: Ints
    spread_devices: tuple[Ints, ...]
    spread_replicated: tuple[bool, ...]
    home: Home = NO_HOME

    @property
    def rows(self) -> Bools:
        """`(forms,)` whether each form cuts rows."""
        found: Bools = self.catalog.forms.rows[self.forms]
        return found


def assemble(
    catalog: Catalog, cost_model: CostModel, vector_price: Floats, links_price: Floats, home: Home = NO_HOME
) -> Assembly:
    """The arrays of a search over a catalog.

    Args:
        catalog: what can be made of every table.
        cost_model: its head prices devices.
        vector_price: `(calls, h + 2)` rough ms a unit of each sum.
        links_price: `(2,)` rough ms a byte of values and of ids.
        home: where pieces lay in the plan to start from.
    """
    task = catalog.task
    members = members_of(task)
    owner = {table: item for item, tables in enumerate(members) for table in tables}
    parts, forms = pieces_of(catalog, members)
    own, memory, served, legal = parts.arrays()
    item = np.array([owner[int(table)] for table in catalog.forms.table[forms]], dtype=np.int64)
    spreads = spreads_of(catalog, members)
    ranges, devices = _device_ranges(spreads.devices)
    setting = Setting(
        first=np.concatenate([[0], np.cumsum(parts.units)]).astype(np.int64),
        item=item,
        next_form=_rings(item),
        equal=catalog.forms.equal[forms],
        part=own.part,
        call=own.call,
        vectors=own.vectors,
        bytes=memory,
        served=served,
        legal=legal,
        price=own.priced(vector_price) + served @ links_price,
        most=np.array([most_pieces(task, tables) for tables in members], dtype=np.int64),
        allowed=allowed_devices(task, members),
        rivals=rivals_of(task, members, owner),
        spread_first=np.searchsorted(spreads.item, np.arange(len(members) + 1)).astype(np.int64),
        spread_range=ranges,
        spread_device=devices,
        spread_part=spreads.added.part,
        spread_call=spreads.added.call,
        spread_vectors=spreads.added.vectors,
        spread_bytes=spreads.bytes,
        spread_served=spreads.served,
        spread_reduced=spreads.reduced,
        mix=np.ascontiguousarray(cost_model.pricing.mix),
        base=np.concatenate([cost_model.pricing.hidden_bias, cost_model.pricing.bias]),
        once=cost_model.pricing.once,
        memory=np.array(task.topology.memory_bytes, dtype=np.int64),
        links=link_facts(task.topology),
        home_form=home.form,
        home_first=home.first,
        home_device=home.device,
        home_width=home.width,
        home_unit_ms=home.unit_ms,
        home_spread_ms=home.spread_ms,
    )
    return Assembly(setting, catalog, members, forms, spreads.devices, spreads.replicated)


def _rings(item: Ints) -> Ints:
    """`(forms,)` the form of the same item after each, the first after the last."""
    order = np.argsort(item, kind="stable")
    result = np.empty_like(order)
    for forms in np.split(order, np.flatnonzero(np.diff(item[order])) + 1):
        result[forms] = np.roll(forms, -1)
    return result


def _device_ranges(sets: tuple[Ints, ...]) -> tuple[Ints, Ints]:
    """`(sets, 2)` where the devices of each set lie in one array, and that array; equal sets, which are one object, share their place."""
    begin, place, parts = 0, {}, [np.zeros(0, dtype=np.int64)]
    for devices in sets:
        if id(devices) not in place:
            place[id(devices)] = (begin, begin + devices.size)
            parts.append(devices)
            begin += devices.size
    ranges = np.array([place[id(devices)] for devices in sets], dtype=np.int64).reshape(len(sets), 2)
    return ranges, np.concatenate(parts)


def empty_state(setting: Setting) -> State:
    """A state without a piece."""
    items, devices = setting.most.size, setting.memory.size
    calls = 1 + max(int(setting.call.max(initial=0)), int(setting.spread_call.max(initial=0)))
    room = _ROOM * items + 8 * devices + 64
    hosts = -(-devices // int(setting.links[1]))
    return State(
        live=np.zeros(1, dtype=np.int64),
        form=np.zeros(room, dtype=np.int64),
        width=np.zeros(room, dtype=np.int64),
        device=np.full(room, NOTHING),
        near=np.full((room, 2), NOTHING),
        kin=np.full((room, 2), NOTHING),
        on=np.full(devices, NOTHING),
        of=np.full(items, NOTHING),
        pieces=np.zeros(items, dtype=np.int64),
        spread=np.full(items, NOTHING),
        sums=np.tile(setting.base, (devices, calls, 1)),
        counts=np.zeros((devices, calls), dtype=np.int64),
        priced=np.zeros((devices, calls, 2)),
        served=np.zeros((devices, 2)),
        reduced=np.zeros((devices, 2)),
        by_host=np.zeros((hosts + 1, 2)),
        used=np.zeros(devices, dtype=np.int64),
        times=np.zeros((devices, 4)),
        heat=np.zeros(devices),
        weight=np.zeros(4),
        scale=np.zeros(4),
        squarings=np.zeros(1, dtype=np.int64),
    )


def shards_of(task: Task, assembly: Assembly, state: State) -> list[Shard]:
    """The shards of a full state; devices keep the units they held in the plan to start from, where there is one."""
    shards: list[Shard] = []
    for item, spread in enumerate(state.spread):
        if spread >= 0:
            devices = assembly.spread_devices[spread]
            for table in assembly.members[item]:
                shards += spread_shards(task, table, devices, assembly.spread_replicated[spread])
    count = int(state.live[0])
    item_of = assembly.setting.item[state.form[:count]]
    order = np.lexsort((state.device[:count], item_of))
    for pieces in np.split(order, np.flatnonzero(np.diff(item_of[order])) + 1) if count else ():
        form, devices, widths = int(state.form[pieces[0]]), state.device[pieces], state.width[pieces]
        item = int(item_of[pieces[0]])
        starts = first_units(assembly.home, item, form, devices, widths)
        for device, start, stop in zip(devices.tolist(), starts.tolist(), (starts + widths).tolist(), strict=True):
            shards += piece_shards(task, assembly, form, (start, stop), device)
    return shards


def piece_shards(task: Task, assembly: Assembly, form: int, units: tuple[int, int], device: int) -> list[Shard]:
    """The blocks of the units `[start, stop)` of a form, of each table of its item."""
    if assembly.rows[form]:
        table = task.tables[assembly.catalog.forms.table[assembly.forms[form]]]
        start, stop = (table.rows * unit // row_units(table.rows) for unit in units)
        return [Shard(table.name, (start, stop), (0, table.dim), (device,))]
    first = assembly.setting.first
    whole, members = int(first[form + 1] - first[form]), assembly.members[assembly.setting.item[form]]
    shards = []
    for index in members:
        table = task.tables[index]
        own = assembly.forms[form] if len(members) == 1 else index
        start, stop = (unit * table.dim // whole for unit in units)
        equal = assembly.catalog.forms.equal[own] and stop - start < table.dim
        width = table.dim // int(assembly.catalog.forms.units[own]) if equal else stop - start
        cuts = range(start, stop, width)
        shards += [Shard(table.name, (0, table.rows), (cut, cut + width), (device,)) for cut in cuts]
    return shards


def spread_shards(task: Task, index: int, devices: Ints, replicated: bool) -> list[Shard]:
    """Replicas of a table, or its equal row blocks, on some devices."""
    table = task.tables[index]
    ranks = [int(device) for device in devices]
    if replicated:
        return [Shard.whole(table, *ranks)]
    blocks = zip(pairwise(even_cuts(table.rows, len(ranks))), ranks, strict=True)
    return [Shard(table.name, rows, (0, table.dim), (rank,)) for rows, rank in blocks]
