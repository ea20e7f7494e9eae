"""The compared strategies, with their limits and with versions: texts of all that their results depend on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from shardwright.cost.files import bundled_models
from shardwright.cost.published import CALL_MS, FACTORS
from shardwright.learned.policy_files import bundled_policy
from shardwright.search.baselines import HEURISTICS
from shardwright.search.neuroshard import NeuroShard
from shardwright.search.registry import strategy_named, takes_policy, with_policy
from shardwright.search.strategy import Strategy

SORTED = tuple(strategy.name for strategy in HEURISTICS)
LEARNED = ("autoshard", "dreamshard", "dreamshard+")
TIES = "ties by size"
"""Mark in the version of a sorted heuristic's rows. In rows without it, the order of the tables broke ties."""
TORCHREC = "torchrec"
WHOLE = ("random", *SORTED, "greedy", "autoshard", "dreamshard")
"""Strategies that place whole tables in the papers; here they cut a table that fits no device whole."""
COMPARED = ("random", *SORTED, "greedy", *LEARNED, TORCHREC, "neuroshard", "certified")
"""The strategies of NeuroShard's comparisons, and our own: greedy (by fused cost), dreamshard+, certified."""
_LIMITED = ("certified", "neuroshard", "dreamshard+", TORCHREC)


@dataclass(frozen=True)
class Entrant:
    """A strategy in a comparison.

    Attributes:
        strategy: the strategy.
        version: text of all that its plans depend on besides task, cost model and program: limits, options, policy.
        time_limit: seconds per search; None for no limit.
    """

    strategy: Strategy
    version: str = ""
    time_limit: float | None = None

    @property
    def name(self) -> str:
        """The strategy's name."""
        return self.strategy.name


@dataclass(frozen=True)
class Limits:
    """Limits of the searches.

    Attributes:
        seconds: time limit of a search by `certified`, `neuroshard` or `dreamshard+`, which use all the time they get.
        torchrec_seconds: time limit of a search by TorchRec's planner.
        tolerance: gap at which `certified` and `dreamshard+` stop.
    """

    seconds: float = 5.0
    torchrec_seconds: float = 60.0
    tolerance: float = 0.002


def entrant(name: str, limits: Limits = Limits(), *, policy: Path | None = None) -> Entrant:
    """The entrant for a strategy name.

    Args:
        name: name in the registry.
        limits: limits of its searches.
        policy: policy file for a strategy that places by a policy; by default the bundled one.
    """
    strategy, facts = strategy_named(name), []
    if takes_policy(strategy):
        strategy = with_policy(strategy, policy) if policy else strategy
        facts.append(policy_version(name, policy))
    if is_dataclass(strategy) and any(field.name == "tolerance" for field in fields(strategy)):
        strategy = cast(Strategy, replace(cast(Any, strategy), tolerance=limits.tolerance))
        facts.append(f"tolerance {limits.tolerance:g}")
    if name == TORCHREC:
        facts.append(torchrec_version())
    if name in SORTED:
        facts.append(TIES)
    if isinstance(strategy, NeuroShard):
        facts.append(f"score {strategy.score}")
    limit = None
    if name in _LIMITED:
        limit = limits.torchrec_seconds if name == TORCHREC else limits.seconds
        facts.append(f"{limit:g} s")
    return Entrant(strategy, ", ".join(facts), limit)


def policy_version(strategy: str, policy: Path | None = None) -> str:
    """A digest of the policy file, for example "policy 0123abcd"."""
    base = "dreamshard" if strategy == "dreamshard+" else strategy
    return f"policy {digest(policy or bundled_policy(base))}"


def model_version(device: str) -> str:
    """A digest of the bundled cost model ("model 0123abcd"), or of the published figures if none is bundled ("published h100 0123abcd")."""
    path = bundled_models().get(device)
    if path is not None:
        return f"model {digest(path)}"
    return f"published {device} {hashlib.sha256(repr((CALL_MS, FACTORS)).encode()).hexdigest()[:8]}"


def torchrec_version() -> str:
    """The version of TorchRec, for example "torchrec 1.0.0"; "no torchrec" if it is not installed."""
    try:
        return f"torchrec {version('torchrec')}"
    except PackageNotFoundError:
        return "no torchrec"


@cache
def torchrec_installed() -> bool:
    """Whether TorchRec's planner can run here."""
    return all(find_spec(name) is not None for name in ("torch", "fbgemm_gpu", "torchrec"))


@cache
def digest(path: Path) -> str:
    """The first eight hex digits of the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]
