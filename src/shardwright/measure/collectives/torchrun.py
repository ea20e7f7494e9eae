"""Ranks that torchrun started, on one or several hosts, as a group that rank 0 asks.

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint host0:29500 -m shardwright calibrate --links --device cuda

Every process is a rank. Rank 0 sends every request to the others, as a tensor with JSON text. A rank that hangs ends itself after the
timeout; torchrun then ends the others.
"""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure.collectives.rank import Member, RunPolicy, answer, group_backend, joined_group
from shardwright.measure.hardware import MACHINE, fingerprint

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class PlaceInGroup:
    """Place of this process in a group that torchrun started.

    Attributes:
        rank: number of this process.
        world: number of ranks on all hosts.
        local_rank: number of this process on this host.
        local_world: number of ranks on this host.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int

    @property
    def hosts(self) -> int:
        """Number of hosts of the group."""
        return self.world // self.local_world


def place_of_this_process(environment: Mapping[str, str] | None = None) -> PlaceInGroup | None:
    """The place that torchrun's environment variables give to this process; None if torchrun did not start it.

    Raises:
        InvalidInput: the hosts have different numbers of ranks.
    """
    given = os.environ if environment is None else environment
    if not all(given.get(name) for name in _VARIABLES):
        return None
    rank, world, local_rank, local_world = (int(given[name]) for name in _VARIABLES[:4])
    if world % local_world or rank % local_world != local_rank:
        raise InvalidInput(
            f"WORLD_SIZE is {world}, LOCAL_WORLD_SIZE {local_world}, RANK {rank}, LOCAL_RANK {local_rank}: every host must have as many "
            "ranks, numbered host by host; use the same --nproc-per-node"
        )
    return PlaceInGroup(rank, world, local_rank, local_world)


@dataclass(frozen=True)
class LedGroup:
    """The group as rank 0 sees it.

    Attributes:
        member: this process.
        policy: how often a collective is run.
        timeout_s: longest time of a request; a rank that takes longer ends itself.
    """

    member: Member
    policy: RunPolicy
    timeout_s: float

    def ask(self, request: dict[str, Any], what: str) -> dict[str, Any]:
        """Have all ranks serve a request, and return the reply of rank 0.

        Raises:
            MeasurementFailed: a rank ended.
        """
        with _telling_of_ranks(what):
            self._share(request)
            return self._serve(request)

    def follow(self) -> None:
        """On every other rank: serve requests until rank 0 ends the group."""
        with _telling_of_ranks("for rank 0"):
            while (request := self._share({})).get("end") is None:
                self._serve(request)

    def end(self) -> None:
        """On rank 0: let the other ranks go."""
        self._share({"end": True})

    def _serve(self, request: dict[str, Any]) -> dict[str, Any]:
        faulthandler.dump_traceback_later(self.timeout_s, exit=True)
        try:
            return answer(self.member, request, self.policy)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _share(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document of rank 0, on every rank."""
        import torch
        import torch.distributed as dist

        own = torch.tensor(list(json.dumps(document).encode()), dtype=torch.uint8, device=self.member.device)
        length = torch.tensor([len(own)], device=self.member.device)
        dist.broadcast(length, src=0)
        text = own if self.member.rank == 0 else own.new_empty(int(length))
        dist.broadcast(text, src=0)
        shared: dict[str, Any] = json.loads(bytes(text.tolist()))
        return shared


@contextmanager
def led_group(
    device: str, place: PlaceInGroup, timeout_s: float, options: Mapping[str, Any], policy: RunPolicy
) -> Iterator[LedGroup | None]:
    """Join the group for a block: on rank 0 with the group, on the others, which serve it meanwhile, with None.

    Args:
        device: "cpu" or "cuda".
        place: this process's place.
        timeout_s: longest time of a request.
        options: what the ranks were started with; must be the same everywhere.
        policy: how often a collective is run.

    Raises:
        MeasurementFailed: the ranks were started with different options or on different hardware, or one ended.
    """
    with joined_group(
        device,
        place.rank,
        place.world,
        local_rank=place.local_rank,
        local_world=place.local_world,
        timeout_s=timeout_s,
    ) as member:
        group = LedGroup(member, policy, timeout_s)
        _check_agreement(group, device, place, options)
        if place.rank:
            group.follow()
            yield None
            return
        try:
            yield group
        except InvalidInput:
            group.end()
            raise
        group.end()


@contextmanager
def _telling_of_ranks(what: str) -> Iterator[None]:
    """Say in one line what torch.distributed says when a rank of the group is gone."""
    try:
        yield
    except RuntimeError as error:
        raise MeasurementFailed(
            f"a rank ended or hung {what} ({str(error).splitlines()[0]}); what was measured is kept: start all hosts again"
        ) from error


def _check_agreement(group: LedGroup, device: str, place: PlaceInGroup, options: Mapping[str, Any]) -> None:
    """Check that all ranks have the same options on the same kind of machine, and all hosts as many ranks."""
    hardware = fingerprint(device, group_backend(device))
    mine = [{**options, "ranks of a host": place.local_world}, {key: hardware[key] for key in MACHINE}]
    first = group._share({"ranks": mine})["ranks"]
    agree = group.member.gather([float(json.loads(json.dumps(mine)) == first)])
    others = [rank for rank, (same,) in enumerate(agree) if not same]
    if others:
        raise MeasurementFailed(
            f"rank {others[0]} was started with other options than rank 0, or with another number of ranks on its host, or runs on other "
            "hardware or another torch; start all hosts with the same command, on machines that are alike"
        )
