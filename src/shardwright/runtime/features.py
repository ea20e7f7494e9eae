"""Read jagged ids and return pooled outputs and jagged rows, as mappings of tensors or from TorchRec's KeyedJaggedTensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch

from shardwright.errors import InvalidInput
from shardwright.runtime.placement import Placement
from shardwright.task.table import Table


class JaggedRows(NamedTuple):
    """The looked-up rows of one feature.

    Attributes:
        values: `(n, dim)` fp32 rows of all samples, one after the other.
        lengths: `(samples,)` rows of each sample.
    """

    values: torch.Tensor
    lengths: torch.Tensor


Features: TypeAlias = Mapping[str, tuple[torch.Tensor, ...]]
"""By feature, `(n,)` int64 ids and `(samples,)` lengths, and for weighted tables `(n,)` weights."""


class Feature(NamedTuple):
    """A feature of a model, which looks up in one table.

    Attributes:
        name: name of the feature.
        table: the table.
    """

    name: str
    table: Table

    @property
    def needs(self) -> tuple[str, ...]:
        """Its tensors in a batch; only the rows of a bag can be weighted."""
        return ("ids", "lengths", "weights") if self.table.weighted and self.table.pooled else ("ids", "lengths")


def features_of(tables: Sequence[Table], named: Mapping[str, Sequence[str]] | None) -> tuple[Feature, ...]:
    """Return the features of tables, table by table.

    Args:
        tables: the tables.
        named: by table, its features in the order of `Table.poolings`; a table of one feature gives it its own name unless named.

    Raises:
        InvalidInput: a table's features are not named, or their number or a name is wrong.
    """
    named = {} if named is None else named
    features = []
    for table in tables:
        names = [named[table.name]] if isinstance(named.get(table.name), str) else named.get(table.name)
        if names is None and len(table.poolings) == 1:
            names = [table.name]
        if names is None or len(names) != len(table.poolings):
            given = "no names" if names is None else f"{len(names)} names"
            raise InvalidInput(
                f"table '{table.name}' serves {len(table.poolings)} features and has {given} for them; "
                f"name each by features={{'{table.name}': [...]}}"
            )
        features += [Feature(str(name), table) for name in names]
    twice = [name for name, count in Counter(feature.name for feature in features).items() if count > 1]
    unknown = sorted(set(named) - {table.name for table in tables})
    if twice or unknown:
        what = (
            f"feature '{twice[0]}' is named twice"
            if twice
            else f"features are named for '{unknown[0]}', which is not a table of this module"
        )
        raise InvalidInput(f"{what}; name each feature of the module's tables once")
    return tuple(features)


@dataclass(frozen=True, eq=False)
class RankBatch:
    """The lookups of one rank in one step.

    Attributes:
        ids: `(n,)` ids, part after part, and within it feature after feature.
        counts: lookups of each part.
        pieces: by group, for each feature of each part, lookups or, if a holder answers with sums, samples: rows of its output.
        bags: `(m,)` bag of each lookup whose holder answers with sums; bags are numbered through all their parts.
        weights: `(m,)` fp32 weights of these lookups; None if no table has weights.
        read: by feature, its checked ids, lengths and weights.
        error: why the features are not a valid batch; None if they are.
    """

    ids: torch.Tensor
    counts: list[int]
    pieces: list[list[int]]
    bags: torch.Tensor
    weights: torch.Tensor | None = None
    read: Features = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def of(cls, features: Any, wanted: Sequence[Feature], placement: Placement, device: torch.device) -> RankBatch:
        """Read features. An error is kept in the batch, since all ranks must learn of it."""
        try:
            return cls._arranged(_read(features, wanted, device), wanted, placement, device)
        except InvalidInput as error:
            problem = str(error)
        except Exception as error:  # any error: the other ranks wait for the report
            problem = f"features cannot be read ({type(error).__name__}: {error}); give dense tensors on {device}"
        empty = torch.zeros(0, dtype=torch.int64)
        nothing = {feature.name: (empty, empty, empty.float()) for feature in wanted}
        return cls._arranged(nothing, wanted, placement, device, problem)

    @classmethod
    def _arranged(
        cls,
        read: Features,
        wanted: Sequence[Feature],
        placement: Placement,
        device: torch.device,
        error: str | None = None,
    ) -> RankBatch:
        """Arrange the features in the order of a placement's parts."""
        counts = [0] * len(placement.parts)
        pieces: list[list[int]] = [[] for _ in placement.groups]
        ids: list[torch.Tensor] = []
        summed: list[tuple[torch.Tensor, ...]] = []
        for part, group, feature in _places(wanted, placement):
            tensors, sums = read[feature.name], placement.groups[group].sums
            ids.append(tensors[0])
            counts[part] += tensors[0].numel()
            pieces[group].append(tensors[1 if sums else 0].numel())
            summed += [tensors] * sums
        all_ids = torch.cat(ids).to(device=device, dtype=torch.int64)
        bags, weights = all_ids[:0], None
        if summed:
            lengths = torch.cat([tensors[1] for tensors in summed]).to(device)
            bags = torch.repeat_interleave(lengths, output_size=sum(tensors[0].numel() for tensors in summed))
            if any(group.sums and group.weighted for group in placement.groups):
                of_features = [its[2] if len(its) > 2 else torch.ones(its[0].numel()) for its in summed]
                weights = torch.cat([its.to(device, torch.float32) for its in of_features])
        return cls(all_ids, counts, pieces, bags, weights, read, error)

    @property
    def outputs(self) -> list[int]:
        """Rows of the output of each group."""
        return [sum(pieces) for pieces in self.pieces]

    def result(
        self, wanted: Sequence[Feature], placement: Placement, rows: Sequence[torch.Tensor], like: Any
    ) -> Mapping[str, Any]:
        """Return the outputs by feature, from those of each part: sums of samples, or rows in the type that matches the given features."""
        kind: Any = JaggedRows
        if not isinstance(like, Mapping):
            import torchrec

            kind = torchrec.JaggedTensor
        blocks: dict[str, dict[int, torch.Tensor]] = {feature.name: {} for feature in wanted}
        for output, (part, group, feature) in zip(rows, _places(wanted, placement), strict=True):
            rows_of_bags = feature.table.pooled and not placement.groups[group].sums
            block = _pooled(output, feature, self.read[feature.name]) if rows_of_bags else output
            blocks[feature.name][placement.parts[part].columns[0]] = block
        result: dict[str, Any] = {}
        for feature in wanted:
            outputs = [output for _, output in sorted(blocks[feature.name].items())]
            joined, lengths = torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0], self.read[feature.name][1]
            result[feature.name] = joined if feature.table.pooled else kind(values=joined, lengths=lengths)
        return result


def _places(wanted: Sequence[Feature], placement: Placement) -> Iterator[tuple[int, int, Feature]]:
    """Yield the features of each part, in the order of their lookups and outputs: number of the part, its group, and the feature."""
    of_table: dict[str, list[Feature]] = {}
    for feature in wanted:
        of_table.setdefault(feature.table.name, []).append(feature)
    for number, (part, group) in enumerate(zip(placement.parts, placement.group_of.tolist(), strict=True)):
        yield from ((number, group, feature) for feature in of_table[part.table.name])


def _pooled(rows: torch.Tensor, feature: Feature, read: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """`(samples, dim)` sums of a feature's `(n, dim)` rows."""
    lengths = read[1].to(device=rows.device, dtype=torch.int64)
    if rows.shape[0] == 0:
        return rows.new_zeros((lengths.numel(), rows.shape[1])) + rows.sum()  # keeps autograd's way
    if "weights" in feature.needs:
        rows = rows * read[2].to(rows)[:, None]
    every = torch.arange(rows.shape[0], device=rows.device)
    starts = torch.cumsum(lengths, 0) - lengths
    return torch.nn.functional.embedding_bag(every, rows, starts, mode="sum")


def _read(features: Any, wanted: Sequence[Feature], device: torch.device) -> Features:
    """Return the checked features."""
    parts = features if isinstance(features, Mapping) else _jagged_parts(features, wanted)
    for feature in wanted:
        _check_part(parts, feature, device)
    names = [feature.name for feature in wanted]
    _check_lengths(names, [parts[name][0].numel() for name in names], [parts[name][1] for name in names])
    return {feature.name: tuple(parts[feature.name])[: len(feature.needs)] for feature in wanted}


def _jagged_parts(features: Any, wanted: Sequence[Feature]) -> Features:
    """Return the ids and lengths of the features in a KeyedJaggedTensor."""
    if not hasattr(features, "keys") or not hasattr(features, "lengths_or_none"):
        raise InvalidInput(
            f"features are a {type(features).__name__}, must be a KeyedJaggedTensor or a mapping from feature to (ids, lengths)"
        )
    keys = list(features.keys())
    if features.inverse_indices_or_none() is not None:
        raise InvalidInput(
            "features have inverse_indices, which would give samples the outputs of others; leave them out, and index the outputs by them"
        )
    if len(set(keys)) < len(keys):
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        raise InvalidInput(f"features have '{twice}' twice; give each feature once")
    sizes = features.length_per_key()
    parts = [features.values().split(sizes), features.lengths().split(features.stride_per_key())]
    if features.weights_or_none() is not None:
        parts.append(features.weights().split(sizes))
    names = {feature.name for feature in wanted}
    return {key: tuple(tensors) for key, *tensors in zip(keys, *parts, strict=True) if key in names}


def _check_part(features: Features, feature: Feature, device: torch.device) -> None:
    """Check that ids, lengths and weights of a feature are tensors that can be read."""
    name = feature.name
    if name not in features:
        raise InvalidInput(
            f"features have no '{name}'; every feature of the module needs ids and lengths, empty ones if it has no lookups"
        )
    part, needs = features[name], feature.needs
    tensors = isinstance(part, tuple | list) and all(isinstance(tensor, torch.Tensor) for tensor in part)
    if not tensors or not len(needs) <= len(part) <= 3:
        raise InvalidInput(f"feature '{name}': features must be a tuple of tensors ({', '.join(needs)})")
    allowed = dict.fromkeys(("cpu", device.type))
    for tensor, what in zip(part, needs, strict=False):
        types = (torch.float32,) if what == "weights" else (torch.int64, torch.int32)
        if tensor.ndim != 1 or tensor.dtype not in types:
            raise InvalidInput(
                f"feature '{name}': {what} are {tensor.dtype} of shape {tuple(tensor.shape)}, must be "
                f"{str(types[0]).removeprefix('torch.')} of shape (n,)"
            )
        if tensor.layout != torch.strided:
            raise InvalidInput(f"feature '{name}': {what} are {tensor.layout}, must be torch.strided; call to_dense()")
        if tensor.device.type not in allowed:
            raise InvalidInput(
                f"feature '{name}': {what} are on {tensor.device}, must be on {' or '.join(allowed)}; move them there"
            )
    if "weights" in needs and part[2].requires_grad:
        raise InvalidInput(
            f"feature '{name}': its weights require gradients, which do not travel; give weights.detach()"
        )
    if "weights" in needs and part[2].numel() != part[0].numel():
        raise InvalidInput(
            f"feature '{name}': it has {part[2].numel()} weights and {part[0].numel()} ids; give each id one weight"
        )


def _check_lengths(names: Sequence[str], counts: Sequence[int], lengths: Sequence[torch.Tensor]) -> None:
    """Check that no length is negative and that lengths add up, with one copy to main memory for all features."""
    if len({its.numel() for its in lengths}) == 1:
        by_feature = torch.stack(list(lengths))
        sums = torch.stack([by_feature.sum(1), (by_feature < 0).sum(1)]).tolist()
    else:
        sums = torch.stack([torch.stack([its.sum(), (its < 0).sum()]) for its in lengths]).T.tolist()
    for name, count, total, negative in zip(names, counts, *sums, strict=True):
        if negative:
            raise InvalidInput(f"feature '{name}': {negative} of its lengths are negative; a sample has at least 0 ids")
        if total != count:
            raise InvalidInput(f"feature '{name}': its lengths add up to {total}, but it has {count} ids")
