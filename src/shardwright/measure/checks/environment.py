"""What a machine has, and whether it fits together."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from shardwright.errors import ShardwrightError
from shardwright.measure.backend import check_backend, is_own, load_backend, source_digest
from shardwright.measure.hardware import device_memory, fingerprint, import_torch

MATCHING_TORCH = {"1.8": "2.13", "1.7": "2.12", "1.6": "2.11", "1.5": "2.10", "1.4": "2.9"}
"""Release of FBGEMM and the release of torch that it is built for (the table in FBGEMM's own package)."""


def environment(device: str, backend: str) -> dict[str, str]:
    """What this machine has: the fingerprint of a store, and on a GPU driver, CUDA version, capability and memory.

    Of a backend of the user's own also the digest of its source file: once that is changed, it has not been checked yet.

    Raises:
        InvalidInput: there is no such backend.
        MissingDependency: torch is not installed.
        MeasurementFailed: there is no such device.
    """
    check_backend(backend)
    facts = dict(fingerprint(device, backend))
    if is_own(backend):
        facts["backend_source"] = source_digest(backend)
    if device == "cuda":
        torch = import_torch()
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts |= {
            "driver": _driver(),
            "cuda": str(torch.version.cuda),
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": str(properties.multi_processor_count),
            "l2_bytes": str(getattr(properties, "L2_cache_size", "unknown")),
            "memory_bytes": str(device_memory()),
        }
    return facts


def problems(facts: Mapping[str, str]) -> list[str]:
    """What does not fit together, each with its remedy; nothing where all does."""
    found = []
    if facts["backend"] == "fbgemm":
        wanted = MATCHING_TORCH.get(".".join(facts["fbgemm"].split(".")[:2]))
        if wanted is not None and ".".join(facts["torch"].split(".")[:2]) != wanted:
            found.append(
                f"FBGEMM {facts['fbgemm']} is built for torch {wanted}, here is torch {facts['torch']}; install a pair that matches"
            )
        try:
            load_backend("fbgemm")
        except ShardwrightError as error:
            found.append(str(error))
        except OSError as error:  # a library of FBGEMM does not find another one
            found.append(
                f"FBGEMM {facts['fbgemm']} cannot be loaded ({error}); install the build for this torch and CUDA"
            )
    return found


def _driver() -> str:
    """Version of the GPU's driver; "unknown" where nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else "unknown"
