"""Made-up collectives with known latencies and bandwidths."""

import numpy as np
import pyarrow as pa

INTRA, INTER = (0.3, 2e9), (1.5, 0.4e9)  # latency in ms, bytes per second
KINDS = ("all_to_all", "all_to_all", "all_to_all", "reduce_scatter", "all_gather", "all_reduce")


def _time(sent, received, intra, inter):
    busiest = np.maximum(sent, received)
    latency, bandwidth = (np.array(figures)[:, None] for figures in zip(intra, inter, strict=True))
    return np.where(busiest > 0, latency + busiest / bandwidth * 1e3, 0).max(axis=0)


def _all_to_all(rng, world, host):
    batch_size = int(rng.choice([512, 1024, 2048]))
    dims = rng.integers(1, 200, world) * 4
    moved = 4.0 * np.repeat(dims[:, None], world, axis=1) * batch_size / world
    np.fill_diagonal(moved, 0)
    near = host[:, None] == host[None, :]
    sent = np.stack([(moved * near).sum(axis=1), (moved * ~near).sum(axis=1)])
    received = np.stack([(moved * near).sum(axis=0), (moved * ~near).sum(axis=0)])
    delays = rng.uniform(0, 3, world)
    return batch_size, dims, sent, received, delays - delays.min()


def rows(samples, world=4, hosts=1, noise=0.0, seed=0, intra=INTRA, inter=INTER, kinds=KINDS, repeated=20, slow=0.0):
    """Rows of a store; the first `repeated` samples are measured twice, a share `slow` takes five times as long."""
    rng = np.random.default_rng(seed)
    host = np.arange(world) // (world // hosts)
    for sample in range(samples):
        kind = kinds[sample % len(kinds)]
        if kind == "all_to_all":
            batch_size, dims, sent, received, delays = _all_to_all(rng, world, host)
        else:
            size = float(np.exp(rng.uniform(7, 17)))
            batch_size, dims, delays = 0, np.zeros(0, int), np.zeros(world)
            sent = received = np.repeat([[size], [size / 4 if hosts > 1 else 0]], world, axis=1)
        for repeat in range(1 + (sample < repeated)):
            factor = np.exp(noise * rng.standard_normal((2, world))) * (5 if rng.random() < slow else 1)
            forward = delays.max() - delays + _time(sent, received, intra, inter)
            backward = _time(sent, received, intra, inter) if kind == "all_to_all" else np.zeros(0)
            yield {
                "sample": sample,
                "repeat": repeat,
                "kind": kind,
                "world": world,
                "hosts": hosts,
                "batch_size": batch_size,
                "dims": dims.tolist(),
                "bytes": sent.sum(axis=0).astype(int).tolist(),
                "sent_intra": sent[0].astype(int).tolist(),
                "sent_inter": sent[1].astype(int).tolist(),
                "received_intra": received[0].astype(int).tolist(),
                "received_inter": received[1].astype(int).tolist(),
                "delays_ms": delays.tolist(),
                "forward_ms": (forward * factor[0]).tolist(),
                "backward_ms": (backward * factor[1][: len(backward)]).tolist(),
                "runs": 5,
                "backend": "gloo",
                "measured_at": 1_700_000_000_000 + sample,
            }


def table(samples, **options):
    """The rows as a store's table."""
    return pa.Table.from_pylist(list(rows(samples, **options)))
