"""Made-up all-to-alls with known latencies and bandwidths."""

import numpy as np
import pyarrow as pa

INTRA, INTER = (0.3, 2e9), (1.5, 0.4e9)  # latency in ms, bytes per second


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


def rows(samples, world=4, hosts=1, noise=0.0, seed=0, intra=INTRA, inter=INTER, repeated=20, slow=0.0):
    """Rows of a store; the first `repeated` samples are measured twice, a share `slow` takes five times as long."""
    rng = np.random.default_rng(seed)
    host = np.arange(world) // (world // hosts)
    for sample in range(samples):
        batch_size, dims, sent, received, delays = _all_to_all(rng, world, host)
        for repeat in range(1 + (sample < repeated)):
            factor = np.exp(noise * rng.standard_normal((2, world))) * (5 if rng.random() < slow else 1)
            forward = delays.max() - delays + _time(sent, received, intra, inter)
            backward = _time(sent, received, intra, inter)
            yield {
                "sample": sample,
                "repeat": repeat,
                "kind": "all_to_all",
                "world": world,
                "hosts": hosts,
                "batch_size": batch_size,
                "dims": dims.tolist(),
                "delays_ms": delays.tolist(),
                "forward_ms": (forward * factor[0]).tolist(),
                "backward_ms": (backward * factor[1]).tolist(),
                "runs": 5,
                "backend": "gloo",
                "measured_at": 1_700_000_000_000 + sample,
            }


def table(samples, **options):
    """The rows as a store's table."""
    return pa.Table.from_pylist(list(rows(samples, **options)))
