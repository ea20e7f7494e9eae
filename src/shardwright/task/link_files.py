"""Files of the measured links of one cluster, which `shardwright calibrate --links` writes and topologies read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from shardwright.errors import InvalidInput
from shardwright.files import dump_document, parse_document, write_atomically
from shardwright.schema import Place, check_format, convert
from shardwright.task.links import Links, backend_of, links_from_dict, links_to_dict

if TYPE_CHECKING:
    from shardwright.task.topology import Topology

FORMAT = 1


@dataclass(frozen=True)
class Cluster:
    """The cluster on which links were measured.

    Attributes:
        device: device type, as topologies name it.
        hosts: number of hosts.
        devices_per_host: devices of each host.
        backend: backend of torch.distributed.
        torch: version of torch.
    """

    device: str
    hosts: int
    devices_per_host: int
    backend: str
    torch: str

    @property
    def devices(self) -> int:
        """Devices of all hosts."""
        return self.hosts * self.devices_per_host

    def is_of(self, topology: Topology) -> bool:
        """Whether a topology has these devices on hosts of this number and size, and they train by this backend."""
        shape = (topology.device, topology.hosts, topology.devices_per_host, backend_of(topology.device))
        return shape == (self.device, self.hosts, self.devices_per_host, self.backend)

    def __str__(self) -> str:
        return f"{self.hosts} × {self.devices_per_host} {self.device}"


@dataclass(frozen=True)
class LinkErrors:
    """Errors of a collective's fitted link speed, for one link class.

    Attributes:
        held_out: mean relative error of the fit at sizes that it has not seen.
        repeats: mean relative difference between two measurements of one time; None without repeats.
    """

    held_out: float
    repeats: float | None


@dataclass(frozen=True)
class MeasuredLinks:
    """Links of a cluster, as measured.

    Attributes:
        cluster: the cluster.
        links: latencies and bandwidths.
        errors: their errors, by collective and link class.
        date: date of the measurement, in ISO format.
    """

    cluster: Cluster
    links: Links
    errors: dict[str, dict[str, LinkErrors]]
    date: str

    def check_cluster(self, topology: Topology, where: str) -> None:
        """Check that a topology that is to take the links, from the file `where`, is of the same cluster.

        Raises:
            InvalidInput: the topology has another device type or backend, or hosts of another number or size.
        """
        if not self.cluster.is_of(topology):
            cluster = f"{topology.hosts} × {topology.devices_per_host} {topology.device}"
            by_backend = f", which trains by {backend_of(topology.device)}" if str(self.cluster) == cluster else ""
            measured = f"{self.cluster} by {self.cluster.backend}" if by_backend else str(self.cluster)
            raise InvalidInput(
                f"{where}: links of {measured}, but the topology is {cluster}{by_backend}; "
                "measure this cluster: shardwright calibrate --links"
            )

    def save(self, path: str | Path) -> None:
        """Write a links file; atomic."""
        document = {
            "format": FORMAT,
            "cluster": asdict(self.cluster),
            "links": links_to_dict(self.links),
            "errors": {
                name: {link: asdict(error) for link, error in classes.items()} for name, classes in self.errors.items()
            },
            "date": self.date,
        }
        write_atomically(path, dump_document(document, path, otherwise=".json"))


class _LinksFile(Struct, forbid_unknown_fields=True):
    cluster: Cluster
    links: dict[str, Any]
    errors: dict[str, dict[str, LinkErrors]] = {}
    date: str = ""
    format: int = FORMAT


def load_links(path: str | Path) -> MeasuredLinks:
    """Read a links file.

    Raises:
        InvalidInput: the file cannot be read or breaks a rule; the message names file, field, value and rule.
    """
    document, place = parse_document(path, "links file"), Place(str(path))
    check_format(document, place, "links file", FORMAT)
    content = convert(document, _LinksFile, place)
    with place.naming():
        return MeasuredLinks(content.cluster, links_from_dict(content.links, "links"), content.errors, content.date)
