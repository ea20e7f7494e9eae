"""`flexshard-traffic`: predicted bytes between hosts and communication time of sequence tables, by strategy, exchange and memory.

Four parts: (1) one table of 10 million rows × 128, for which an estimate by hand exists; (2) models of 20 to 200 tables on 8 hosts of 8
devices; (3) a model on 1 to 64 hosts linked by 100 to 400 Gbit/s; (4) a sweep over batch, skew and link that shows where tiers pay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from itertools import product

from experiments.experiment import Page, Piece, Row
from experiments.flexshard.sequence_models import (
    BATCH,
    CLUSTER_FACTOR,
    CLUSTERS,
    EXCHANGES,
    FACTORS,
    LINES,
    MODELS,
    ONE_TABLE,
    SHAPES,
    SKEWS,
    STRATEGIES,
    SWEEP,
    SWEEP_BATCHES,
    SWEEP_GBITS,
    SWEEP_SKEWS,
    SWEPT,
    Sent,
    cluster,
    model,
    sent,
    task_of,
    with_memory,
)
from shardwright.task import AccessProfile, Table, Task

_ROW_WISE = 1.0  # memory factor of a row-wise plan, which gains nothing from more
_OWN = (_ROW_WISE, "row_wise")
_VERSION = "1"  # version of the models and of the counted figures; change it with them


@dataclass(frozen=True)
class Setting:
    """A model on a cluster.

    Attributes:
        part: part of the experiment.
        accesses: Zipf exponents of the tables: one exponent such as "Zipf 1.2", or a key of `SHAPES`.
        tables: number of tables.
        hosts: number of hosts, with 8 devices each.
        gbits: bandwidth of a device's link to other hosts, Gbit/s.
        seed: seed of the model.
        batch: samples per device.
    """

    part: str
    accesses: str
    tables: int
    hosts: int
    gbits: int
    seed: int
    batch: int = BATCH

    def task(self) -> Task:
        """The task, with ample memory."""
        if self.part == ONE_TABLE:
            return table_by_hand(float(self.accesses.removeprefix("Zipf ")))
        skew = self.accesses.removeprefix("Zipf ")
        tables = model(self.seed, self.tables, SHAPES.get(self.accesses) or (float(skew), float(skew)))
        return task_of(tables, cluster(self.hosts, between=f"{self.gbits} Gbit/s"), batch=self.batch)

    def cases(self) -> Iterator[tuple[str, float, str]]:
        """Exchange, memory factor and strategy of each plan."""
        if self.part in (CLUSTERS, SWEEP):
            for strategy, exchange in LINES.values() if self.part == CLUSTERS else SWEPT:
                yield exchange, _ROW_WISE if strategy == "row_wise" else CLUSTER_FACTOR, strategy
            return
        others = [name for name in STRATEGIES if name != "row_wise"]
        for exchange in EXCHANGES:
            for memory, strategy in (_OWN, *((factor, name) for factor in FACTORS for name in others)):
                yield exchange, memory, strategy


def table_by_hand(skew: float) -> Task:
    """The task of the estimate by hand: one table, 8 × 8 devices, links without latency, SGD."""
    table = Table("sequence", 10_000_000, 128, 200.0, False, AccessProfile.zipf(10_000_000, skew))
    topology = cluster(8, inside="200 GB/s", between="12.5 GB/s", waits=(0.0, 0.0))
    return task_of([table], topology, optimizer="sgd")


def settings(quick: bool) -> list[Setting]:
    """All settings; each part is spread evenly over the list, so that its beginning holds some settings of every part."""
    skews, seeds, counts = ((0.8, 1.1, 1.2), 2, (20,)) if quick else (SKEWS, 5, (20, 50, 100, 200))
    hosts, links = ((1, 4, 16), (100, 400)) if quick else ((1, 2, 4, 8, 16, 32, 64), (100, 200, 400))
    parts = [
        [Setting(ONE_TABLE, f"Zipf {skew:g}", 1, 8, 100, 0) for skew in skews],
        [Setting(MODELS, shape, count, 8, 400, seed) for seed in range(seeds) for count in counts for shape in SHAPES],
        [Setting(CLUSTERS, shape, 12, count, gbits, 0) for gbits in links for count in hosts for shape in SHAPES],
    ]
    sweep = ((1.2,), (16, 256, 1024, 4096), (100,)) if quick else (SWEEP_SKEWS, SWEEP_BATCHES, SWEEP_GBITS)
    parts.append([Setting(SWEEP, f"Zipf {skew:g}", 12, 8, gbits, 0, batch) for skew, batch, gbits in product(*sweep)])
    placed = [((index + 0.5) / len(part), setting) for part in parts for index, setting in enumerate(part)]
    return [setting for _, setting in sorted(placed, key=lambda each: each[0])]


@dataclass(frozen=True)
class FlexShardTraffic:
    """The experiment `flexshard-traffic`: tiers of sequence tables beside plans without tiers."""

    name: str = "flexshard-traffic"
    about: str = "traffic between hosts and communication time of sequence tables in tiers (FlexShard)"

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """One piece for each plan, setting by setting."""
        return [
            Piece({**asdict(setting), "exchange": exchange, "memory": memory, "strategy": strategy}, _VERSION)
            for setting in settings(quick)
            for exchange, memory, strategy in setting.cases()
        ]

    def run(self, piece: Piece) -> Sequence[Row]:
        """Plan, and count the bytes that the plan sends; all figures are None if no plan fits the memory."""
        key = dict(piece.key)
        exchange, memory, strategy = (key.pop(name) for name in ("exchange", "memory", "strategy"))
        task = replace(_with_memory(Setting(**key), float(memory)), exchange=EXCHANGES[str(exchange)])  # type: ignore[arg-type]
        traffic = sent(task, str(strategy))
        return [asdict(traffic) if traffic else dict.fromkeys(field.name for field in fields(Sent))]

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """The paper's claims beside the results, then every part."""
        from experiments.flexshard.page import page_of

        return page_of(rows)


@lru_cache(maxsize=4)
def _with_memory(setting: Setting, factor: float) -> Task:
    """The setting's task with limited memory; cached, as the pieces of a setting follow each other."""
    (task,) = with_memory(setting.task(), factor)
    return task
