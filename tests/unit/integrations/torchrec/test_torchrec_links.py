"""Links of TorchRec's topology, and the figures that users add."""

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.planner.types import (
    BasicCommsBandwidths,
    CollectiveType,
    GeneralizedCommsBandwidth,
    PlannerError,
)

from shardwright.errors import InvalidInput
from shardwright.integrations.torchrec.topology import KnownLinks, topology_of
from shardwright.task import Links, LinkSpeed
from shardwright.task.link_files import Cluster, MeasuredLinks

from .made import SHARDERS, bags, planner, topology

pytestmark = pytest.mark.torchrec

GB_S = 1e6  # TorchRec counts bytes per ms
MEASURED = Links(all_to_all=(None, LinkSpeed(0.04, 44e9)))


class ByCollective(GeneralizedCommsBandwidth):
    """Sums of a host's devices share the host's way out, as TorchRec states bandwidths."""

    def get_bw(self, local_world_size, world_size, collective_type):
        if world_size <= local_world_size:
            return 300 * GB_S
        return {CollectiveType.ALL_TO_ALL: 40, CollectiveType.REDUCE_SCATTER: 350}.get(collective_type, 384) * GB_S

    @property
    def intra_host_bw(self):
        return 300 * GB_S

    @property
    def inter_host_bw(self):
        return 48 * GB_S


def converted(world=16, local=8, bandwidths=None, known=None):
    given = topology(world, local, generalized_comms_bandwidths=bandwidths or ByCollective())
    return topology_of(given, given, known)


def test_bandwidths_by_collective_are_kept_if_they_differ():
    our_topology = converted()
    assert our_topology.link_bandwidth == (300e9, 48e9)
    assert our_topology.bandwidth_of("all_to_all") == (300e9, 40e9)
    assert our_topology.bandwidth_of("reduce_scatter") == (300e9, 350e9 / 8)
    assert our_topology.bandwidth_of("all_gather") == our_topology.bandwidth_of("all_reduce") == (300e9, 48e9)
    assert our_topology.links.all_gather == our_topology.links.all_reduce == (None, None)
    assert our_topology.latency_of("all_to_all") == our_topology.link_latency_ms


@pytest.mark.parametrize("bandwidth", [0, -1.0, float("nan"), float("inf"), None])
def test_bandwidths_must_be_above_zero(bandwidth):
    class Given(ByCollective):
        def get_bw(self, local_world_size, world_size, collective_type):
            return bandwidth

    with pytest.raises(PlannerError, match=r"get_bw\(8, 8, all_to_all\) of Given is .* must be a finite number"):
        converted(bandwidths=Given())
    given = topology(16, 8, inter_host_bw=bandwidth)
    with pytest.raises(PlannerError, match="inter_host_bw is .* must be a finite number"):
        topology_of(given, given)


def test_one_host_has_no_links_between_hosts_to_ask_for():
    assert converted(8, 8).links is None
    assert converted(4, 1).bandwidth_of("all_to_all")[1] == 40e9


def test_basic_bandwidths_say_no_more_than_the_topology():
    assert converted(bandwidths=BasicCommsBandwidths(48 * GB_S, 300 * GB_S)).links is None


def test_a_user_adds_links_and_latencies():
    our_topology = converted(known=KnownLinks(MEASURED, (0.1, 0.2)))
    assert our_topology.bandwidth_of("all_to_all") == (300e9, 44e9)
    assert our_topology.latency_of("all_to_all") == (0.1, 0.04)
    assert our_topology.latency_of("all_reduce") == (0.1, 0.2)
    assert our_topology.bandwidth_of("reduce_scatter") == (300e9, 350e9 / 8)


def test_a_planner_takes_a_file_of_its_cluster(tmp_path):
    file = tmp_path / "links.json"
    MeasuredLinks(Cluster("h100", 2, 2, "nccl", "2"), MEASURED, {}, "").save(file)
    made = planner(topology(4, 2), links=file, latencies_ms=(0.1, 0.2))
    made.plan(bags([(100, 8)]), SHARDERS)
    assert made.last_problem.task.topology.links == MEASURED
    assert made.last_problem.task.topology.link_latency_ms == (0.1, 0.2)
    with pytest.raises(
        InvalidInput, match=r"links of 2 × 2 h100, but the topology is 1 × 4 h100; measure this cluster"
    ):
        planner(topology(4, 4), links=file)
    with pytest.raises(InvalidInput, match=r"but the topology is 2 × 2 cpu"):
        planner(topology(4, 2, device="cpu"), links=str(file))
    MeasuredLinks(Cluster("cpu", 2, 2, "gloo", "2"), MEASURED, {}, "").save(file)
    with pytest.raises(InvalidInput, match=r"links of 2 × 2 cpu, but the topology is 2 × 2 cuda"):
        planner(topology(4, 2), links=file)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"latencies_ms": (0.1,)}, "latencies_ms is .*, must be two numbers"),
        ({"latencies_ms": "ab"}, "latencies_ms is 'ab'"),
        ({"latencies_ms": 0.1}, "latencies_ms is 0.1"),
        ({"links": {"all_to_all": {}}}, "links is .*, must be shardwright.task.Links or a file"),
    ],
)
def test_what_a_planner_cannot_take_for_links(fields, said):
    with pytest.raises(InvalidInput, match=said):
        planner(topology(4, 2), **fields)
