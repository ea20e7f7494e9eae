"""A plan in two sentences: which device and tables a step waits for, and which change pays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.report.changes import Change, best_use_of, quoted
from shardwright.report.entry import Entry, phase_ms
from shardwright.sharding import BOUND_SCOPES
from shardwright.sharding.costs import PHASES
from shardwright.sharding.display import ranks_text
from shardwright.sharding.plan import Plan

PHASE_NAMES = ("forward lookup", "forward collectives", "backward collectives", "backward and optimizer")


@dataclass(frozen=True)
class Culprit:
    """A table that keeps the slowest device of a phase busy.

    Attributes:
        table: index of the table in the task.
        device_ms: ms that this device's phase would save without the table.
        phase_ms: ms that the phase would save without the table; the next slowest device then decides.
    """

    table: int
    device_ms: float
    phase_ms: float


@dataclass(frozen=True)
class Bottleneck:
    """The device that a phase waits for.

    Attributes:
        phase: the phase, one of `PHASES`.
        name: the phase in words.
        rank: rank of the device.
        ms: the device's time in the phase.
        mean_ms: mean time over all devices.
        alone_ms: sum over the tables of the saving on the device without this one; not its time, as fused costs do not add.
        tables: the tables whose absence would save most, largest saving first; empty if no cost model was available.
    """

    phase: str
    name: str
    rank: int
    ms: float
    mean_ms: float
    alone_ms: float
    tables: tuple[Culprit, ...]


def bottlenecks(entry: Entry, most: int = 8) -> tuple[Bottleneck, ...]:
    """The bottleneck of each phase, with at most `most` tables each."""
    result = []
    for index, (phase, name, times) in enumerate(zip(PHASES, PHASE_NAMES, phase_ms(entry.cost), strict=True)):
        rank = int(np.argmax(times))
        alone, tables = _culprits(entry, index, most)
        result.append(Bottleneck(phase, name, rank, times[rank], float(np.mean(times)), alone, tables))
    return tuple(result)


def _culprits(entry: Entry, phase: int, most: int) -> tuple[float, tuple[Culprit, ...]]:
    marginal = entry.marginals
    if marginal is None:
        return 0.0, ()
    saved = marginal.slowest_ms[:, phase]
    order = np.argsort(-saved, kind="stable")[:most]
    tables = tuple(
        Culprit(int(table), float(saved[table]), float(marginal.phase_ms[table, phase]))
        for table in order
        if saved[table] > 0
    )
    return float(saved.sum()), tables


_WAITING = 0.2  # share of a step spent waiting for slower devices, above which the verdict begins with waiting
_PLAN = 0.02  # least gain for which a change of the plan is mentioned
_TASK = 0.05  # the same for a change of the task, which is harder to get
_LINKS = 0.1  # the same for faster links, which are the hardest to get
_CLOSE = 0.1  # most that another plan can save if this one counts as close to its bound


def verdict(entry: Entry) -> str:
    """A sentence about the bottleneck of a step and the priced change with the largest gain.

    Args:
        entry: a plan with its cost, and with priced changes if a cost model was available.

    Returns:
        One or two sentences. Every figure follows from the plan's predicted cost, its bound, or a priced change.
    """
    if entry.cost.step_ms <= 0:
        return "No time is predicted for a step."
    idle = idle_sentence(entry.plan, entry.cost_model)
    advice = "; ".join([*_other_plan(entry, idle), *_other_task(entry)])
    parts = [f"{_waits(entry)}, and the fullest device uses {used(_fullest(entry))} of its memory", idle, advice]
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in parts if text)


def idle_sentence(plan: Plan, cost_model: CostModel | None) -> str:
    """Why devices hold no table: the cost of the best priced use of them; "" if all devices hold one."""
    devices = plan.task.topology.devices
    idle = [rank for rank in range(devices) if not plan.by_device[rank]]
    if not idle:
        return ""
    which = (
        f"device {ranks_text(idle, devices)} holds" if len(idle) == 1 else f"devices {ranks_text(idle, devices)} hold"
    )
    best = best_use_of(plan, cost_model, idle) if cost_model is not None else None
    if best is None:
        return f"{which} no table: constraints or memory leave no block for {'it' if len(idle) == 1 else 'them'} of the costliest tables"
    if best.gain > 0:
        return f"{which} no table, though {best.text} would save {100 * best.gain:.1f}% of a step"
    return f"{which} no table, since a step would be longer: by {-100 * best.gain:.1f}% with {best.text}, the best use of those priced"


def used(share: float) -> str:
    """A share of memory in whole percents; a small share reads "below 1%" instead of "0%"."""
    return "below 1%" if 0 < share < 0.01 else _percent(share)


def _waits(entry: Entry) -> str:
    phases, step = bottlenecks(entry, most=1), entry.cost.step_ms
    lost = [phase.ms - phase.mean_ms for phase in phases]
    if sum(lost) >= _WAITING * step:
        worst = phases[lost.index(max(lost))]
        tables = entry.plan.task.tables
        busy = f", busy with {quoted(tables[worst.tables[0].table])}" if worst.tables else ""
        most = "most" if max(lost) >= sum(lost) / 2 else "the largest part"
        return (
            f"A device waits {_percent(sum(lost) / step)} of a step for slower ones on average, {most} of it in {worst.name} for device "
            f"{worst.rank}{busy}"
        )
    links = (phases[1].ms + phases[2].ms) / step
    if links >= 0.5:
        return f"{_percent(links)} of a step is collectives{_of_links(entry.changes, links)}"
    kernels = max(phases[0], phases[3], key=lambda phase: phase.ms)
    return f"{_percent(1 - links)} of a step is kernels, most of it {kernels.name}"


def _of_links(changes: tuple[Change, ...], links: float) -> str:
    """The largest part of the collectives' time in words, latency or the bytes of a link class; "" if neither is."""
    latency = max((change.gain for change in changes if change.kind == "latency"), default=0.0)
    if latency >= links / 2:
        return ", most of it latency"
    bytes_ = max((change for change in changes if change.kind == "links"), key=lambda change: change.gain, default=None)
    if bytes_ and 2 * bytes_.gain >= links / 2:
        return f", most of it bytes {bytes_.text.removeprefix('twice the bandwidth ')}"
    return ""


def _other_plan(entry: Entry, before: str) -> list[str]:
    """The saving of another plan of the same task, unless the text before names it: of the best priced one, and the most by the bound."""
    best = next((change for change in entry.changes if change.kind == "plan" and change.gain >= _PLAN), None)
    hints = [f"{best.text} would save {_percent(best.gain)} of a step"] if best and best.text not in before else []
    gap = entry.plan.gap
    if gap is None and entry.plan.bound_ms is not None:
        return hints  # a bound of the links alone does not limit another plan's gain
    if gap is None:
        return [*hints, "plan with the default strategy for a bound on what another plan saves"]
    if gap < 0:
        return hints
    room, scope = gap / (1 + gap), BOUND_SCOPES[entry.plan.bound_scope]
    if room > _CLOSE:
        hints.append(f"by the bound {scope}, another plan may save up to {_percent(room)}")
    elif not hints:
        hints.append(f"by the bound {scope}, no other plan saves more than {100 * room:.1f}%")
    return hints


def _other_task(entry: Entry) -> list[str]:
    """The change of the task or the cluster that saves most; faster links only if no change of the task saves enough."""
    priced = [change for change in entry.changes if change.gain >= _TASK]
    own = next((change for change in priced if change.kind in ("memory", "constraint", "batch")), None)
    best = own or next((change for change in priced if change.kind == "links" and change.gain >= _LINKS), None)
    if best is None:
        return []
    if best.kind == "batch":
        return [f"{best.text} would take {_percent(best.gain)} less time a sample"]
    return [f"{best.text} would save {_percent(best.gain)} of a step"]


def _fullest(entry: Entry) -> float:
    plan = entry.plan
    return max(
        int(held) / limit for held, limit in zip(plan.memory.total, plan.task.topology.memory_bytes, strict=True)
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
