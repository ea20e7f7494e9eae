"""Give tables the access profiles and pooling factors of their features, as `shardwright profile` finds them in logs."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from torch import nn
from torchrec.distributed.planner.constants import POOLING_FACTOR
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders

from shardwright.errors import InvalidInput
from shardwright.integrations.torchrec.modules import Sharder, shardable_tables
from shardwright.task.access import AccessProfile
from shardwright.task.files import load_tables
from shardwright.task.quantities import checked_number
from shardwright.task.table import MAX_FEATURES, Table, shares_of_more_ids

Profiles: TypeAlias = Mapping[str, Table] | Iterable[Table] | str | Path | None
_LEAST = 1e-6  # lookups per sample: a feature that is always empty still has its bags


def profiles_by_name(profiles: Profiles) -> dict[str, Table]:
    """Profiles by feature name, from a mapping, from tables named like features, or from a tables file.

    Raises:
        InvalidInput: the file cannot be read, or these are no profiles.
    """
    if profiles is None:
        return {}
    if isinstance(profiles, (str, Path)):
        profiles = load_tables(profiles)
    if not isinstance(profiles, Mapping):
        tables = list(profiles) if isinstance(profiles, Iterable) else [profiles]
        profiles = {getattr(table, "name", ""): table for table in tables}
    for table in profiles.values():
        if not isinstance(table, Table):
            raise InvalidInput(
                f"profiles hold {reprlib.repr(table)}, must be shardwright.Tables, by name of the feature or in a list, or the path of a "
                "tables.yaml that 'shardwright profile' wrote"
            )
    return dict(profiles)


def with_profiles(
    module: nn.Module,
    profiles: Profiles,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    sharders: Sequence[Sharder] | None = None,
) -> dict[str, ParameterConstraints]:
    """Add the pooling factors of profiles to constraints, for TorchRec's own planner or any other.

    Args:
        module: the model.
        profiles: profiles of features.
        constraints: existing constraints; pooling factors given there stay.
        sharders: sharders of the model's modules; TorchRec's default ones if None.

    Returns:
        New constraints by name of the parameter; the given ones stay unchanged.
    """
    known, result = profiles_by_name(profiles), dict(constraints or {})
    for table in shardable_tables(module, sharders or get_default_sharders(), ""):
        given = result.get(table.name)
        if not any(_matched(table.name, table.features, known)) or (given is not None and _has_pooling(given)):
            continue
        factors = _factors(table.name, table.features, known)
        result[table.name] = replace(given or ParameterConstraints(), pooling_factors=factors)
    return result


def statistics_of(
    name: str,
    rows: int,
    features: Sequence[str],
    given: ParameterConstraints | None,
    batch_size: int,
    known: Mapping[str, Table],
) -> tuple[list[float], AccessProfile]:
    """Lookups of a table per sample of the step's batch by each bag of a sample, and how all of them spread over its rows.

    Pooling factors in constraints take precedence over those of profiles. The bags of a feature in a sample are its number of poolings ×
    its batch size / the step's batch size. If that is not a whole number, the bags of all features together are rounded up and get equal
    lookups.

    Raises:
        InvalidInput: constraints do not have one number for each feature, or one that is no number.
    """
    given = given or ParameterConstraints()
    check_numbers({name: given}, {name})
    factors = list(given.pooling_factors) if _has_pooling(given) else _factors(name, features, known)
    many = features or factors
    factors = _one_each(name, "pooling_factors", factors, many, 1.0)
    poolings = _one_each(name, "num_poolings", given.num_poolings or (), many, 1.0)
    batches = _one_each(name, "batch_sizes", given.batch_sizes or (), many, float(batch_size))
    bags = [count * size / batch_size for count, size in zip(poolings, batches, strict=True)]
    lookups = [factor * count for factor, count in zip(factors, bags, strict=True)]
    matched = _matched(name, features, known)
    weights = lookups if len(lookups) == len(matched) else [1.0] * len(matched)
    weighted = [
        (fitted(profile.access, rows), weight) for profile, weight in zip(matched, weights, strict=True) if profile
    ]
    return _by_bag(name, factors, bags), _mixed(weighted) if weighted else AccessProfile.uniform(rows)


def check_numbers(constraints: Mapping[str, ParameterConstraints] | None, names: Collection[str]) -> None:
    """Check the numbers in constraints on tables' lookups before they are used.

    Raises:
        InvalidInput: one is negative, infinite or no number.
    """
    for name, given in (constraints or {}).items():
        for field in ("pooling_factors", "num_poolings", "batch_sizes") if given and name in names else ():
            for value in getattr(given, field) or ():
                checked_number(value, f"constraints of table '{name}': {field}", zero=True)


def id_shares_of(name: str, rows: int, features: Sequence[str], known: Mapping[str, Table]) -> tuple[float, ...]:
    """Distribution of a table's lookups over its ids, for all of its features together; empty if it is unknown for one of them."""
    profiles = [profile for profile in _matched(name, features, known) if profile is not None]
    by_profile = [shares_of_more_ids(profile.id_shares, profile.rows, rows) for profile in profiles]
    if len(by_profile) < len(_matched(name, features, known)) or len({len(shares) for shares in by_profile}) > 1:
        return ()
    total = sum(profile.pooling for profile in profiles)
    weights = [profile.pooling / total for profile in profiles]
    return tuple(sum(map(operator.mul, shares, weights)) for shares in zip(*by_profile, strict=True))


def _by_bag(name: str, factors: Sequence[float], bags: Sequence[float]) -> list[float]:
    """Lookups per sample by each of its bags."""
    count = math.ceil(sum(bags) - 1e-9)
    if count > MAX_FEATURES:
        raise InvalidInput(
            f"constraints of table '{name}': num_poolings and batch_sizes make {count} bags a sample, must make at most {MAX_FEATURES}"
        )
    of_bags = [factor for factor, many in zip(factors, bags, strict=True) for _ in range(int(many))]
    if not all(many.is_integer() for many in bags):
        of_bags = [sum(map(operator.mul, factors, bags)) / count] * count
    return [max(each, _LEAST) for each in of_bags or [0.0]]


def _one_each(
    name: str, field: str, values: Sequence[float], features: Sequence[object], default: float
) -> list[float]:
    """The numbers of a constraint, one for each feature.

    Raises:
        InvalidInput: there are more or fewer.
    """
    if not values and field != "pooling_factors":
        return [default] * len(features)
    if len(values) != len(features):
        raise InvalidInput(
            f"constraints of table '{name}': {field} has {len(values)} numbers, the table has {len(features)} features; give one for each"
        )
    return [float(value) for value in values]


def fitted(access: AccessProfile, rows: int) -> AccessProfile:
    """Fit a profile to a table's number of rows: rows never seen are added; if the profile has more rows, they are merged at random."""
    if access.total_rows < rows:
        if access.exponent is not None:
            return AccessProfile.zipf(rows, access.exponent)
        return AccessProfile(np.append(access.rows, float(rows)), np.append(access.share, 1.0))
    return access.thinned(rows)


def _mixed(weighted: Sequence[tuple[AccessProfile, float]]) -> AccessProfile:
    """One profile of all features together, as if rows that are hot for one feature were hot for the others."""
    if len(weighted) == 1 or all(access == weighted[0][0] for access, _ in weighted):
        return weighted[0][0]
    rows = np.unique(np.concatenate([access.rows for access, _ in weighted]))
    total = sum(weight for _, weight in weighted)
    share = sum(np.interp(rows, access.rows, access.share) * (weight / total) for access, weight in weighted)
    return AccessProfile(rows, np.asarray(share))


def _matched(name: str, features: Sequence[str], known: Mapping[str, Table]) -> list[Table | None]:
    """The profile of each feature. If no feature of a table has one, the profile with the table's name."""
    matched = [known.get(feature) for feature in features]
    if not any(matched) and name in known:
        return [known[name]]
    return matched or [None]


def _factors(name: str, features: Sequence[str], known: Mapping[str, Table]) -> list[float]:
    """The pooling factor of each feature by its profile; a profile with the table's name shares its factor out to the features."""
    matched = _matched(name, features, known)
    if len(matched) == len(features) > 1 or matched[0] is None:
        return [profile.pooling if profile else POOLING_FACTOR for profile in matched]
    by_feature, count = matched[0].poolings, len(features)
    return list(by_feature) if count in (0, len(by_feature)) else [matched[0].pooling / count] * count


def _has_pooling(given: ParameterConstraints) -> bool:
    return list(given.pooling_factors) != [POOLING_FACTOR]
