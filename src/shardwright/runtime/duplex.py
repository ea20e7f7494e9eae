"""All-to-all of torch.distributed, on gloo in both directions of a link at once.

gloo's own posts its sends before its receives. The message "ready to receive" then waits in the socket behind the data of the other
direction whenever one rank starts earlier than the other, so that a pair sends one way first and the other way after: up to twice the time
on a slow link. With the receives posted first nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def all_to_all(
    output: torch.Tensor,
    source: torch.Tensor,
    received: Sequence[int],
    sent: Sequence[int],
    group: dist.ProcessGroup,
) -> None:
    """Send a part of a tensor to each member of a group, and get one from each.

    Args:
        output: contiguous; is written.
        source: contiguous.
        received: `(members,)` rows of the output from each member.
        sent: `(members,)` rows of the source to each member.
        group: the members.
    """
    if dist.get_backend(group) != "gloo":
        dist.all_to_all_single(output, source, list(received), list(sent), group=group)
        return
    me, members = dist.get_rank(group), dist.get_world_size(group)
    arriving, leaving = output.split(list(received)), source.split(list(sent))
    arriving[me].copy_(leaving[me])
    waiting = []
    for step in range(1, members):
        before = (me - step) % members
        if received[before]:
            waiting.append(dist.irecv(arriving[before], group=group, group_src=before))
    for step in range(1, members):
        after = (me + step) % members
        if sent[after]:
            waiting.append(dist.isend(leaving[after], group=group, group_dst=after))
    for work in waiting:
        if work is not None:
            work.wait()
