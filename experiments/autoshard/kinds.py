"""The kinds of tasks that `autoshard-transfer` trains and tests policies on, and the matrices that they form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from experiments.learned.tasks import Setting, draw_tasks
from shardwright.learned.options import PricedAutoShard, PricedDreamShard, PricedOptions
from shardwright.task.task import Task


@dataclass(frozen=True)
class Kind:
    """A kind of tasks to train or to test on.

    Attributes:
        setting: numbers of tables and devices.
        unseen: probability of each table to come from the half for testing.
    """

    setting: Setting
    unseen: float

    @property
    def name(self) -> str:
        """For example "50x4-unseen0.25"."""
        return f"{self.setting.tables}x{self.setting.devices}-unseen{self.unseen:g}"

    def tasks(self, count: int, seed: int) -> list[Task]:
        """The first `count` tasks of this kind."""
        return draw_tasks(self.setting, count, seed=seed, unseen=self.unseen)


@dataclass(frozen=True)
class Part:
    """One matrix.

    Attributes:
        name: the property that changes from row to row.
        fixed: the properties that stay the same.
        trained: kinds of the rows, with labels.
        tested: kinds of the columns, with labels.
        targets: for each column, the training kind of the policy that the column's losses are measured against.
    """

    name: str
    fixed: str
    trained: tuple[tuple[Kind, str], ...]
    tested: tuple[tuple[Kind, str], ...]
    targets: tuple[Kind, ...]


@dataclass(frozen=True)
class Scale:
    """The size of the experiment.

    Attributes:
        tables: numbers of tables, on the devices of `base`.
        devices: numbers of devices, with the tables of `base`.
        unseen: shares of unseen tables, in the setting `base`.
        base: the setting that a part keeps in all properties that it does not change.
        training_tasks: number of tasks that each policy trains on.
        tasks: number of test tasks of each kind.
        dreamshard: options of DreamShard; the experiment sets the seed.
        autoshard: options of AutoShard; the experiment sets the seed.
    """

    tables: tuple[int, ...]
    devices: tuple[int, ...]
    unseen: tuple[float, ...]
    base: Setting
    training_tasks: int
    tasks: int
    dreamshard: PricedOptions = field(default_factory=PricedDreamShard)
    autoshard: PricedOptions = field(default_factory=PricedAutoShard)

    def options(self, strategy: str) -> PricedOptions:
        """The options of a learning strategy."""
        return self.dreamshard if strategy == "dreamshard" else self.autoshard

    @property
    def parts(self) -> tuple[Part, ...]:
        """The matrices: numbers of tables, numbers of devices, shares of unseen tables."""
        base = self.base
        tables = [(Setting(count, base.devices), f"{count} tables") for count in self.tables]
        devices = [(Setting(base.tables, count), f"{count} devices") for count in self.devices]
        shares = tuple((Kind(base, share), f"{share:.0%} unseen") for share in self.unseen)
        return (
            _square("numbers of tables", f"{base.devices} devices, unseen tables", tables),
            _square("numbers of devices", f"{base.tables} tables, unseen", devices),
            Part(
                "share of unseen tables",
                base.name,
                ((Kind(base, 0.0), "no table tested on"),),
                shares,
                tuple(kind for kind, _ in shares),
            ),
        )

    @property
    def trained(self) -> list[Kind]:
        """Kinds that policies are trained on, each once; the parts take turns."""
        each = ([*(kind for kind, _ in part.trained), *part.targets] for part in self.parts)
        return _once(chain([Kind(self.base, 0.0)], *zip_longest(*each)))

    @property
    def tested(self) -> list[Kind]:
        """Kinds that policies are tested on, each once."""
        return _once(kind for part in self.parts for kind, _ in part.tested)


def _square(name: str, fixed: str, settings: Sequence[tuple[Setting, str]]) -> Part:
    """A part that trains on tables of one half and tests on the other half, in the same settings."""
    trained, tested = (tuple((Kind(setting, unseen), label) for setting, label in settings) for unseen in (0.0, 1.0))
    return Part(name, fixed, trained, tested, tuple(kind for kind, _ in trained))


def _once(kinds: Iterable[Kind | None]) -> list[Kind]:
    return [kind for kind in dict.fromkeys(kinds) if kind is not None]


FULL = Scale(
    tables=(10, 20, 40, 60, 80, 100),
    devices=(2, 4, 8, 16),
    unseen=(0.0, 0.25, 0.5, 0.75, 1.0),
    base=Setting(50, 4),
    training_tasks=40,
    tasks=20,
)
QUICK = Scale(
    tables=(10, 40),
    devices=(2, 4, 8),
    unseen=(0.0, 1.0),
    base=Setting(50, 4),
    training_tasks=10,
    tasks=5,
    dreamshard=PricedDreamShard(rounds=20),
    autoshard=PricedAutoShard(rounds=5),
)
"""Scale of a quick run. Its policies are hardly trained: it shows that everything runs, and nothing about the strategies."""
