"""The strategies that the experiments compare, with their limits, and what their results depend on."""

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
from shardwright.search.baselines import HEURISTICS
from shardwright.search.learned.policy_files import bundled_policy
from shardwright.search.neuroshard import NeuroShard
from shardwright.search.registry import strategy_named, takes_policy, with_policy
from shardwright.search.strategy import Strategy

SORTED = tuple(strategy.name for strategy in HEURISTICS)
LEARNED = ("autoshard", "dreamshard", "dreamshard+")
TIES = "ties by size"
"""In the version of a sorted heuristic's rows; those without it were made when ties were broken by the order of the tables."""
TORCHREC = "torchrec"
WHOLE = ("random", *SORTED, "greedy", "autoshard", "dreamshard")
"""Strategies that place whole tables in the papers; here they cut a table where it fits no device whole."""
COMPARED = ("random", *SORTED, "greedy", *LEARNED, TORCHREC, "neuroshard", "certified")
"""What NeuroShard's comparisons are about, and ours: greedy by fused cost, dreamshard+, certified."""
_LIMITED = ("certified", "neuroshard", "dreamshard+", TORCHREC)


@dataclass(frozen=True)
class Entrant:
    """A strategy in a comparison.

    Attributes:
        strategy: the strategy.
        version: changes with whatever its plans depend on besides task, cost model and this program: limits, options, policy.
        time_limit: seconds a search; None for no limit.
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
    """What searches are allowed.

    Attributes:
        seconds: of a search of `certified`, `neuroshard` and `dreamshard+`, which use what they are given.
        torchrec_seconds: of a search of TorchRec's planner.
        tolerance: gap at which `certified` and `dreamshard+` stop.
    """

    seconds: float = 5.0
    torchrec_seconds: float = 60.0
    tolerance: float = 0.002


def entrant(name: str, limits: Limits = Limits(), *, device: str = "cpu", policy: Path | None = None) -> Entrant:
    """A strategy by name.

    Args:
        name: a name of the registry.
        limits: what it is allowed.
        device: device type, for the bundled policy.
        policy: file of the policy, for one that places by a policy; by default the one that is bundled for the device.
    """
    strategy, facts = strategy_named(name), []
    if takes_policy(strategy):
        strategy = with_policy(strategy, policy) if policy else strategy
        facts.append(policy_version(name, device, policy))
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


def policy_version(strategy: str, device: str, policy: Path | None = None) -> str:
    """As in "policy 0123abcd": what the policy file's bytes are."""
    base = "dreamshard" if strategy == "dreamshard+" else strategy
    chosen = policy or bundled_policy(base, device)
    return "no policy" if chosen is None else f"policy {digest(chosen)}"


def model_version(device: str) -> str:
    """As in "model 0123abcd": what the bundled cost model's bytes are; as in "published h100 0123abcd", its figures where there is none."""
    path = bundled_models().get(device)
    if path is not None:
        return f"model {digest(path)}"
    return f"published {device} {hashlib.sha256(repr((CALL_MS, FACTORS)).encode()).hexdigest()[:8]}"


def torchrec_version() -> str:
    """As in "torchrec 1.0.0"; "no torchrec" where it is not installed."""
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
