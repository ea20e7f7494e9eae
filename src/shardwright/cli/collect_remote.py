"""`shardwright collect --ray`: kernels measured on the machines of a Ray cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardwright.cli.output import note, progress


def kernels_collected_on(
    address: str,
    output: Path,
    *,
    backend: str | None,
    seconds: float | None,
    **options: Any,
) -> tuple[dict[str, Any], str]:
    """Collect kernels on a cluster; return the result as data and as text.

    Args:
        address: address of the cluster.
        output: the sample store.
        backend: name of the backend.
        seconds: time after which to stop.
        **options: fields of `shardwright.measure.stock.Collection`.
    """
    from shardwright.cluster import open_cluster
    from shardwright.measure.remote import collect_on_cluster
    from shardwright.measure.stock import Collection, summary_text

    collection = Collection(**options)
    with open_cluster(address) as cluster, progress("measuring", detail="starting workers") as report:
        summary = collect_on_cluster(
            cluster,
            output,
            collection,
            backend=backend,
            seconds=seconds,
            progress=report,
            say=note,
        )
    for line in summary.given_up:
        note(f"warning: {line}")
    stores = [
        asdict(store) | {"folder": str(store.folder), "hardware": dict(hardware)} for store, hardware in summary.stores
    ]
    lines = [f"{hardware['processor']}: {summary_text(store)}" for store, hardware in summary.stores]
    lines.append(f"next: shardwright train {output} -o model.safetensors")
    if summary.lost:
        lines.append(f"{summary.lost} times a worker died; what it was doing was done again")
    return {"folder": str(output), "stores": stores, "lost": summary.lost}, "\n".join(lines)
