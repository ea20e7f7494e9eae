"""From a task to the arrays of the compiled search, and back to shards."""

from __future__ import annotations

import numpy as np

from shardwright.cost.communication import served_bytes, traffic
from shardwright.cost.model import CostModel
from shardwright.search.engine.board import Board, Setting, refresh
from shardwright.search.engine.devices import Floats, Ints
from shardwright.search.engine.items import Items, make_items, piece_shards, vectors_of
from shardwright.search.units import Units
from shardwright.sharding.memory import memory_account
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.task.task import Task
from shardwright.task.topology import Topology


def make_setting(task: Task, units: Units, cost_model: CostModel) -> tuple[Setting, Items]:
    """What stays the same in a search of the task."""
    items = make_items(task, units, cost_model)
    pricing, topology = cost_model.pricing, task.topology
    replicated = [shard for shard in units.fixed if len(shard.devices) > 1]
    flows = traffic(task, replicated)
    near, far = topology.link_bandwidth
    setting = Setting(
        first=items.first,
        vectors=np.ascontiguousarray(items.vectors),
        bytes=items.bytes,
        served=np.stack([items.values, items.ids], axis=1),
        most=items.most,
        allowed=items.allowed,
        rivals=items.rivals,
        mix=np.ascontiguousarray(pricing.mix),
        base=np.concatenate([pricing.hidden_bias, pricing.bias]),
        memory=np.array(topology.memory_bytes, dtype=np.int64),
        links=np.array(
            [
                topology.devices,
                topology.devices_per_host,
                1e3 / near,
                1e3 / far,
                topology.intra_latency_ms,
                topology.inter_latency_ms,
            ]
        ),
        other_traffic=np.stack([np.stack([flow.sent, flow.received]) for flow in (flows.forward, flows.backward)]),
    )
    return setting, items


def empty_board(task: Task, units: Units, cost_model: CostModel, setting: Setting, items: Items) -> Board:
    """A board with the fixed shards on it and every item as one unplaced piece."""
    count, devices = items.units.size, task.topology.devices
    capacity = 4 * count + 8 * devices + 64
    item, width = np.zeros((2, capacity), dtype=np.int64)
    item[:count], width[:count] = np.arange(count), items.units
    sums, served = np.tile(setting.base, (devices, 1)), np.zeros((devices, 2))
    works = [shard_work(task, shard) for shard in units.fixed]
    for shard, work, vector in zip(units.fixed, works, vectors_of(cost_model, cost_model.encode(works)), strict=True):
        sums[list(shard.devices)] += vector
        if len(shard.devices) == 1:
            served[shard.devices[0]] += served_bytes(work)
    board = Board(
        item=item,
        width=width,
        device=np.full(capacity, -1),
        live=np.array([count]),
        pieces=np.ones(count, dtype=np.int64),
        sums=sums,
        served=served,
        used=memory_account(task, units.fixed).total,
        times=np.zeros((devices, 4)),
    )
    refresh(setting, board)
    return board


def copy_board(board: Board) -> Board:
    """A board of its own."""
    return Board(*(array.copy() for array in board))  # type: ignore[arg-type]


def cut_evenly(setting: Setting, items: Items, board: Board, costs: Floats, limit: float) -> None:
    """Cut every unplaced whole item that costs more than `limit` into the fewest equal pieces below it.

    Args:
        setting: the search.
        items: its items.
        board: a board with every item as one unplaced piece; changed.
        costs: `(rows,)` ms of every piece alone.
        limit: ms.
    """
    room = board.item.size - int(board.live[0])
    for item in np.argsort(-costs[items.first[1:] - 1], kind="stable"):
        units, most = int(items.units[item]), int(items.most[item])
        count = next((n for n in range(1, most + 1) if costs[items.first[item] + -(-units // n) - 1] <= limit), most)
        if count - 1 > room:
            return
        room -= count - 1
        _cut(board, int(item), units, count)


def _cut(board: Board, item: int, units: int, count: int) -> None:
    """Replace the item's piece, whose index is the item's, by `count` pieces that differ by one unit at most."""
    widths = np.diff(np.arange(count + 1) * units // count)
    begin = int(board.live[0])
    board.width[item] = widths[0]
    board.item[begin : begin + count - 1] = item
    board.width[begin : begin + count - 1] = widths[1:]
    board.device[begin : begin + count - 1] = -1
    board.live[0] += count - 1
    board.pieces[item] = count


def shards_on(units: Units, items: Items, board: Board) -> list[Shard]:
    """The shards of a full board; the pieces of an item take its columns in order of their devices."""
    count = int(board.live[0])
    order: Ints = np.lexsort((board.device[:count], board.item[:count]))
    begins = np.zeros(items.units.size, dtype=np.int64)
    shards = list(units.fixed)
    for piece in order:
        item, width, device = int(board.item[piece]), int(board.width[piece]), int(board.device[piece])
        start = int(begins[item])
        begins[item] += width
        blocks = piece_shards(units.free[item], start, start + width, int(items.units[item]))
        shards += [Shard(s.table, s.rows, s.columns, (device,), s.row_order) for s in blocks]
    return shards


def link_weights(topology: Topology) -> Floats:
    """`(2,)` ms that a byte of values, and of ids, adds to its holder's slower link in both passes."""
    peers = np.array([topology.devices_per_host - 1, topology.devices - topology.devices_per_host])
    slowest = float((peers / topology.devices / np.array(topology.link_bandwidth)).max()) * 1e3
    return np.array([2 * slowest, slowest])
