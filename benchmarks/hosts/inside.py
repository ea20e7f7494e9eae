"""Link counters for ranks inside a host of the test bed."""

from __future__ import annotations

from pathlib import Path

from benchmarks.hosts.network import LINK, LinkBytes

_COUNTERS = Path("/sys/class/net") / LINK / "statistics"


def link_bytes() -> LinkBytes:
    """Return the bytes on this host's link so far, by the kernel's counters."""
    sent, received = (int((_COUNTERS / name).read_text()) for name in ("tx_bytes", "rx_bytes"))
    return LinkBytes(sent, received)
