"""Requests to measure plans on another machine: one compressed JSON file of their devices' work, and the times that come back.

The measuring machine needs only torch, FBGEMM and numpy, and knows nothing of plans. Times come back as JSON lines, each written as soon as
it is measured, so an interrupted run resumes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.files import write_atomically
from shardwright.hardware import Fingerprint, default_backend, fingerprint
from shardwright.measure.device_work import DeviceWork, Visit, arena_bytes, decode_work, device_works, encode_work
from shardwright.measure.measurer import Measurer
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.visits import Progress, Times, time_of, usual_state
from shardwright.sharding.plan import Plan
from shardwright.sharding.work import ShardWork

FORMAT = 2


@dataclass(frozen=True)
class Requests:
    """The work to measure for some plans.

    Attributes:
        works: the distinct works of the plans' devices.
        plans: for each plan, the position in `works` of each device's work; None for a device without work.
    """

    works: tuple[DeviceWork, ...]
    plans: tuple[tuple[int | None, ...], ...]


def requests_of(plans: Sequence[Plan], seed: int = 0) -> Requests:
    """Return the work to measure for these plans; devices with the same work share one request."""
    per_plan = [device_works(plan, seed) for plan in plans]
    known: dict[DeviceWork, int] = {}
    positions = tuple(
        tuple(known.setdefault(work, len(known)) if work.works else None for work in works) for works in per_plan
    )
    return Requests(tuple(known), positions)


def save_requests(requests: Requests, path: Path) -> None:
    """Write requests; each access profile is written once, since most works share theirs."""
    profiles: dict[str, int] = {}
    works = [
        {
            "works": [_encode(work, profiles) for work in request.works],
            "seeds": request.seeds,
            "optimizer": request.optimizer,
        }
        for request in requests.works
    ]
    document = {
        "format": FORMAT,
        "profiles": [json.loads(text) for text in profiles],
        "works": works,
        "plans": requests.plans,
    }
    write_atomically(path, gzip.compress(json.dumps(document).encode(), mtime=0))


def load_requests(path: Path) -> Requests:
    """Read requests.

    Raises:
        InvalidInput: the file does not have this format.
    """
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}, this version reads {FORMAT}")
        works = tuple(
            DeviceWork(
                tuple(_decode(work, document["profiles"]) for work in encoded["works"]),
                tuple(encoded["seeds"]),
                encoded["optimizer"],
            )
            for encoded in document["works"]
        )
        return Requests(works, tuple(map(tuple, document["plans"])))
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InvalidInput(f"{path}: holds no requests of plans ({error}); write them anew") from error


def measure_requests(
    requests: Requests,
    results: Path,
    *,
    device: str,
    backend: str | None = None,
    rounds: int = 3,
    seconds: float = float("inf"),
    seed: int = 0,
    policy: TimingPolicy | None = None,
    progress: Progress | None = None,
) -> int:
    """Measure requests in rounds, each in a new random order, into a file of results; work that is already in it is not measured again.

    A work that cannot be measured is noted with the reason, and not tried again.

    Args:
        requests: what to measure.
        results: file of JSON lines: first the hardware, then one line per measurement.
        device: "cpu" or "cuda".
        backend: "fbgemm", "embedding_bag", or your own as "package.module:ClassName"; by default fbgemm if it is installed.
        rounds: how often each work is rebuilt and measured.
        seconds: stop after this time.
        seed: seed of the order.
        policy: how to repeat within a round.
        progress: called with the numbers of measurements done and wanted.

    Returns:
        Number of measurements still missing.

    Raises:
        MeasurementFailed: the measuring process fails repeatedly.
    """
    stop_at = monotonic() + seconds
    hardware = fingerprint(device, backend or default_backend())
    done = {(line["round"], line["work"]) for line in _lines_of(results, hardware)}
    rng = np.random.default_rng(seed)
    wanted = [(number, int(work)) for number in range(rounds) for work in rng.permutation(len(requests.works))]
    todo = [key for key in wanted if key not in done]
    measurer = Measurer(device, hardware["backend"], arena_bytes(requests.works), policy)
    results.parent.mkdir(parents=True, exist_ok=True)
    with measurer, results.open("a", encoding="utf-8") as file:
        file.write("" if _ends_well(results) else "\n")
        if not done:
            file.write(json.dumps({"hardware": hardware}) + "\n")
        for (number, work), times in _measured(requests, todo, measurer, stop_at):
            file.write(json.dumps({"round": number, "work": work, **times}) + "\n")
            file.flush()
            done.add((number, work))
            if progress:
                progress(len(done), len(wanted), "")
    return len(wanted) - len(done)


def _measured(
    requests: Requests, todo: Sequence[tuple[int, int]], measurer: Measurer, stop_at: float
) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Yield visit after visit until time is up. A work that fails is noted, unless no measuring process can be started."""
    failed: dict[int, str] = {}
    for number, position in todo:
        if monotonic() >= stop_at:
            return
        if position not in failed:
            measurer.ready()
            try:
                visit = measurer.visit(requests.works[position])
            except MeasurementFailed as error:
                failed[position] = str(error)
        if position in failed:
            yield (number, position), {"error": failed[position]}
        else:
            noted = ("forward_ms", "backward_ms", "batches", "sentinel", "usual_ms", "measured_at", "elasticity")
            yield (number, position), {name: getattr(visit, name) for name in noted}


@dataclass(frozen=True)
class Results:
    """Times of requests.

    Attributes:
        hardware: hardware of the measurements.
        times: for each work, forward and backward ms; works without a time are left out.
        rounds: number of measurements of the work measured least often.
        errors: for each work that could not be measured, the reason.
    """

    hardware: Fingerprint
    times: dict[int, Times]
    rounds: int
    errors: dict[int, str]


def read_results(path: Path) -> Results:
    """Read a file of results.

    Raises:
        InvalidInput: the file holds no results.
    """
    lines = list(_lines_of(path, None))
    try:
        hardware = json.loads(path.read_text(encoding="utf-8").splitlines()[0])["hardware"]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise InvalidInput(f"{path}: holds no measured plans ({error}); measure them first") from error
    visits: dict[int, list[Visit]] = {}
    for line in lines:
        if "error" not in line:
            noted = {name: value for name, value in line.items() if name not in ("round", "work")}
            visits.setdefault(line["work"], []).append(Visit(**noted))
    usual = usual_state(visits.values()) if visits else None
    return Results(
        hardware,
        {work: time_of(own, usual) for work, own in visits.items()},
        min(map(len, visits.values()), default=0),
        {line["work"]: line["error"] for line in lines if "error" in line},
    )


def _lines_of(path: Path, hardware: Fingerprint | None) -> Iterator[dict[str, Any]]:
    """Yield the measurements in a file; a last line that was cut short is left out."""
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "hardware" in line:
            if hardware is not None and line["hardware"] != hardware:
                raise InvalidInput(f"{path}: was measured on {line['hardware']}, here is {hardware}; name another file")
        else:
            yield line


def _ends_well(path: Path) -> bool:
    """Whether the last line is complete."""
    return not path.exists() or path.stat().st_size == 0 or path.read_bytes().endswith(b"\n")


def _encode(work: ShardWork, profiles: dict[str, int]) -> dict[str, Any]:
    """Encode a work, with the number of its access profile instead of the profile."""
    encoded = encode_work(work)
    encoded["access"] = profiles.setdefault(json.dumps(encoded["access"]), len(profiles))
    return encoded


def _decode(encoded: dict[str, Any], profiles: Sequence[Any]) -> ShardWork:
    return decode_work({**encoded, "access": profiles[encoded["access"]]})
