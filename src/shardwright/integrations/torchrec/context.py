"""A planner's inputs, as TorchRec hashes them: the hash shows whether a saved plan is for the same inputs, whichever planner made it.

The hash covers the search space of TorchRec's enumerator. Listing that space takes longer than finding a plan, so it is listed only on
demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, permutations, product
from types import SimpleNamespace
from typing import Any

from torch import nn
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import Enumerator, ParameterConstraints, ShardingOption
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from shardwright.integrations.torchrec.modules import Sharder

_MOST_ORDERS = 240


class EnumeratorOnDemand(Enumerator):
    """An enumerator that lists the search space of the last planned model only on demand.

    Attributes:
        given: the enumerator that lists.
        planned: module and sharders that are still to be listed; None if there are none.
    """

    def __init__(self, given: Enumerator) -> None:
        self.given = given
        self.planned: tuple[nn.Module, list[Sharder]] | None = None

    def enumerate(self, module: nn.Module, sharders: list[Sharder]) -> list[ShardingOption]:
        """List the sharding options of a module."""
        self.planned = None
        return list(self.given.enumerate(module, sharders))

    def populate_estimates(self, sharding_options: list[ShardingOption]) -> None:
        """Fill in storage and times of sharding options, as the given enumerator estimates them."""
        self.given.populate_estimates(sharding_options)

    @property
    def last_stored_search_space(self) -> list[ShardingOption] | None:
        """The last listed search space; completes the listing first."""
        if self.planned is not None:
            self.enumerate(*self.planned)
        return getattr(self.given, "last_stored_search_space", None)

    def __getattr__(self, name: str) -> Any:
        if name == "given" or name.startswith(
            "__"
        ):  # this attribute is also looked up while the object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.given, name)


def enumerator_without_times(
    topology: TorchRecTopology, batch_size: int, constraints: dict[str, ParameterConstraints] | None
) -> Enumerator:
    """TorchRec's enumerator with estimates of storage alone: the hash covers storage, and estimating times would take longest."""
    storage = EmbeddingStorageEstimator(topology=topology, constraints=constraints)
    return EmbeddingEnumerator(topology, batch_size, constraints, estimator=[storage])


def other_orders(
    space: Sequence[ShardingOption], constraints: Mapping[str, ParameterConstraints] | None
) -> Iterator[SimpleNamespace]:
    """Enumerators that list the same search space in the orders of other processes, at most `_MOST_ORDERS` of them.

    TorchRec lists the compute kernels of a sharding type, and the sharding types of a constraint, in the order of a Python set. Its hash
    therefore depends on PYTHONHASHSEED.
    """
    tables = [
        [list(of_type) for _, of_type in groupby(of_table, lambda option: option.sharding_type)]
        for _, of_table in groupby(space, lambda option: option.fqn)
    ]
    sets = dict.fromkeys(names for table in tables for names in (_types(table, constraints), *map(_kernels, table)))
    for chosen in islice(product(*map(permutations, sets)), _MOST_ORDERS):
        order = dict(zip(sets, chosen, strict=True))
        yield SimpleNamespace(
            last_stored_search_space=[
                option
                for table in tables
                for of_type in _sorted(table, _types(table, constraints), order)
                for option in _sorted(of_type, _kernels(of_type), order)
            ]
        )


def _types(
    table: Sequence[Sequence[ShardingOption]], constraints: Mapping[str, ParameterConstraints] | None
) -> tuple[str, ...]:
    """The types of a table that TorchRec lists in a set's order; none if the sharder alone decides."""
    given = (constraints or {}).get(table[0][0].name)
    return tuple(options[0].sharding_type for options in table) if given and given.sharding_types else ()


def _kernels(options: Sequence[ShardingOption]) -> tuple[str, ...]:
    return tuple(option.compute_kernel for option in options)


def _sorted(
    items: Sequence[Any], names: tuple[str, ...], order: Mapping[tuple[str, ...], tuple[str, ...]]
) -> list[Any]:
    """The items, one for each name, in the order chosen for the names."""
    if len(names) < 2:
        return list(items)
    by_name = dict(zip(names, items, strict=True))
    return [by_name[name] for name in order[names]]
