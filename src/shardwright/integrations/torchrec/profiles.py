"""Give tables the access profiles and pooling factors of their features, as `shardwright profile` finds them in logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from torch import nn
from torchrec.distributed.planner.constants import POOLING_FACTOR
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders

from shardwright.integrations.torchrec.modules import Sharder, shardable_tables
from shardwright.task.access import AccessProfile
from shardwright.task.files import load_tables
from shardwright.task.table import Table

Profiles: TypeAlias = Mapping[str, Table] | Iterable[Table] | str | Path | None
_LEAST = 1e-6  # lookups per sample: a feature that is always empty still has its bags


def profiles_by_name(profiles: Profiles) -> dict[str, Table]:
    """Profiles by feature name, from a mapping, from tables named like features, or from a tables file.

    Raises:
        InvalidInput: the file cannot be read.
    """
    if profiles is None:
        return {}
    if isinstance(profiles, (str, Path)):
        profiles = load_tables(profiles)
    if isinstance(profiles, Mapping):
        return dict(profiles)
    return {table.name: table for table in profiles}


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
        matched = _matched(table.name, table.features, known)
        given = result.get(table.name)
        if not any(matched) or (given is not None and _has_pooling(given)):
            continue
        factors = [profile.pooling if profile else POOLING_FACTOR for profile in matched]
        result[table.name] = replace(given or ParameterConstraints(), pooling_factors=factors)
    return result


def statistics_of(
    name: str,
    rows: int,
    features: Sequence[str],
    given: ParameterConstraints | None,
    batch_size: int,
    known: Mapping[str, Table],
) -> tuple[float, AccessProfile]:
    """Lookups of a table per sample of the step's batch, over all its features, and how they spread over its rows.

    Pooling factors in constraints go before those of profiles. Lookups of a feature are its pooling factor × its number of poolings ×
    its own batch size / the step's batch size.
    """
    matched = _matched(name, features, known)
    if given is not None and (_has_pooling(given) or not any(matched)):
        factors = list(given.pooling_factors)
    else:
        factors = [profile.pooling if profile else POOLING_FACTOR for profile in matched]
    poolings = _as_many(given.num_poolings if given else None, len(factors), 1.0)
    batches = _as_many(given.batch_sizes if given else None, len(factors), float(batch_size))
    lookups = [
        factor * count * size / batch_size for factor, count, size in zip(factors, poolings, batches, strict=True)
    ]
    weights = lookups if len(lookups) == len(matched) else [1.0] * len(matched)
    found = [
        (fitted(profile.access, rows), weight) for profile, weight in zip(matched, weights, strict=True) if profile
    ]
    return max(sum(lookups), _LEAST), _mixed(found) if found else AccessProfile.uniform(rows)


def fitted(access: AccessProfile, rows: int) -> AccessProfile:
    """Fit a profile to a table's number of rows: rows never seen are added; if the profile has more rows, they are merged at random."""
    if access.total_rows < rows:
        if access.exponent is not None:
            return AccessProfile.zipf(rows, access.exponent)
        return AccessProfile(np.append(access.rows, float(rows)), np.append(access.share, 1.0))
    return access.thinned(rows)


def _mixed(found: Sequence[tuple[AccessProfile, float]]) -> AccessProfile:
    """One profile of all features together, as if rows that are hot for one feature were hot for the others."""
    if len(found) == 1 or all(access == found[0][0] for access, _ in found):
        return found[0][0]
    rows = np.unique(np.concatenate([access.rows for access, _ in found]))
    total = sum(weight for _, weight in found)
    share = sum(np.interp(rows, access.rows, access.share) * (weight / total) for access, weight in found)
    return AccessProfile(rows, np.asarray(share))


def _matched(name: str, features: Sequence[str], known: Mapping[str, Table]) -> list[Table | None]:
    """The profile of each feature. If no feature of a table has one, the profile with the table's name."""
    matched = [known.get(feature) for feature in features]
    if not any(matched) and name in known:
        return [known[name]]
    return matched or [None]


def _has_pooling(given: ParameterConstraints) -> bool:
    return list(given.pooling_factors) != [POOLING_FACTOR]


def _as_many(values: Sequence[float] | None, count: int, default: float) -> list[float]:
    return [float(value) for value in values] if values and len(values) == count else [default] * count
