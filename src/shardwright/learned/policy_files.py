"""Learned policies as safetensors files with a versioned header on their training, and strategies that use them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from shardwright.errors import InvalidInput
from shardwright.learned.arrays import TABLE_FEATURES
from shardwright.schema import Place
from shardwright.search.strategy import why_not_counted
from shardwright.task.task import Task
from shardwright.tensor_files import Weights, load_weights, save_weights

FORMAT = "1"
KIND = "policy"
_FEATURES = json.dumps(TABLE_FEATURES)
_OWN = ("format", "kind", "strategy")
INPUTS = "inputs"
"""Metadata entry of a policy that reads prices (`priced.policy`); a policy without it reads the papers' table features."""
PRICES = "prices 2"
"""The value that the entry must have; its number changes with the inputs."""

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class SavedPolicy:
    """A learned policy.

    Attributes:
        strategy: name of the strategy that learned it.
        weights: float32 arrays by name.
        metadata: record of the training: "world", "features" (set on saving), "options" (JSON), "tasks", "seed", "date".
    """

    strategy: str
    weights: Weights
    metadata: dict[str, str]


def save_policy(policy: SavedPolicy, path: Path) -> None:
    """Write a policy as a safetensors file, atomically.

    Raises:
        InvalidInput: a weight is NaN or infinite, or the path cannot be written to.
    """
    _check_finite(path, policy.weights)
    header = {"format": FORMAT, "kind": KIND, "strategy": policy.strategy}
    if INPUTS not in policy.metadata:
        header["features"] = _FEATURES
    save_weights(path, policy.weights, policy.metadata | header)


def load_policy(path: Path, strategy: str) -> SavedPolicy:
    """Read a policy.

    Raises:
        InvalidInput: the file cannot be read, is damaged or too large, has another format version, feature set or strategy, or holds a
            weight that is NaN or infinite.
    """
    learn = f"learn one with 'shardwright learn {strategy}'"
    check = partial(_check_header, strategy=strategy, learn=learn)
    header, weights = load_weights(path, check, "policy", f"name a policy file, or {learn}")
    _check_finite(path, weights)
    return SavedPolicy(strategy, weights, {name: value for name, value in header.items() if name not in _OWN})


def bundled_policy(strategy: str) -> Path:
    """Path of the policy that the package bundles for a strategy that learns."""
    return Path(str(resources.files("shardwright.learned") / "policies" / f"{strategy}.safetensors"))


@dataclass(frozen=True)
class ByPolicy:
    """Base of the strategies that place by a learned policy.

    Attributes:
        learner: name of the strategy that learns such policies.
        policy: file of the policy; None for the bundled one, which serves every device and cost model.
    """

    learner: ClassVar[str]

    policy: Path | None = None

    @property
    def file(self) -> Path:
        """The policy's file."""
        return self.policy or bundled_policy(self.learner)

    def supports(self, task: Task) -> str | None:
        """Why the task is not supported; None if tables may be whole, cut into columns or rows, or replicated."""
        return why_not_counted(task)

    def read_policy(self, make: Callable[[SavedPolicy], Made]) -> Made:
        """The result of `make` for the policy, cached until the file changes.

        Raises:
            InvalidInput: the file cannot be read, or belongs to another strategy or feature set.
        """
        try:
            modified = self.file.stat().st_mtime_ns
        except OSError:  # reading the file reports the reason
            modified = 0
        made: Made = _made(make, self.file, modified, self.learner)
        return made


@lru_cache(maxsize=8)
def _made(make: Callable[[SavedPolicy], Any], file: Path, modified: int, strategy: str) -> Any:
    with Place(str(file)).naming():
        return make(load_policy(file, strategy))


def _check_header(header: Mapping[str, str], strategy: str, learn: str) -> None:
    stated = header.get("format"), header.get("kind")
    if stated != (FORMAT, KIND):
        raise InvalidInput(
            f"the file is not a policy of format {FORMAT!r} (it says kind {stated[1]!r}, format {stated[0]!r}); {learn}"
        )
    if header.get("strategy") != strategy:
        raise InvalidInput(
            f"the policy was learned by strategy {header.get('strategy')!r}, not by {strategy!r}; "
            f"plan with the strategy that learned it, or {learn}"
        )
    if INPUTS in header and header[INPUTS] != PRICES:
        raise InvalidInput(f"the policy reads {header[INPUTS]!r}, this version offers {PRICES!r}; {learn} again")
    if INPUTS not in header and header.get("features") != _FEATURES:
        raise InvalidInput(f"the policy was learned on other table features than this version computes; {learn} again")


def _check_finite(path: Path, weights: Weights) -> None:
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise InvalidInput(
                f"{path}: weights '{name}' hold NaN or infinity, must be finite numbers; learn the policy again"
            )
