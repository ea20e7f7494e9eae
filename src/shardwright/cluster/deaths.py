"""What became of a job: its result, its own error, or the death of its worker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_LONGEST = 400  # characters of how a worker died; the end says most


@dataclass(frozen=True)
class Death:
    """A worker died before it had answered.

    Attributes:
        text: one line that says how.
    """

    text: str

    def __str__(self) -> str:
        return self.text


def outcome_of(ref: Any) -> Any:
    """The result of a finished job, or a `Death`.

    Args:
        ref: Ray's reference to the result.

    Raises:
        Exception: what the job raised, as it was raised there.
    """
    import ray
    from ray import exceptions

    deaths = (
        exceptions.RayActorError,  # died, or does not answer any more
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.ObjectLostError,  # the job was done, and its node was lost before the result was fetched
        exceptions.ActorUnschedulableError,  # its place is gone
    )
    try:
        return ray.get(ref)
    except exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, deaths) or not isinstance(cause, Exception):
            raise
        raise cause from error
    except deaths as error:
        return Death(_line(error))


def _line(error: Exception) -> str:
    """The lines of a message that say something, as one."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Ray colours its messages
    lines = [line.strip() for line in said.splitlines() if line.strip(" ^")]
    # It names actor, process and node on lines of their own, which say nothing to users, and goes on to explain what deaths there are.
    telling = [line for line in lines if not line.split(":")[0].endswith(("id", "namespace", "class_name", "ip"))]
    text = re.split(r" Some common causes| traceback: ", " ".join(telling or lines))[0]
    return text[-_LONGEST:] or type(error).__name__
