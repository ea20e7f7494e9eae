import pytest

from shardwright.errors import InvalidInput
from shardwright.task import Table, Task, Topology
from shardwright.task.exchange import Exchange
from shardwright.task.files import task_from_dict, task_to_dict


def test_unknown_choice() -> None:
    with pytest.raises(InvalidInput, match="deduplicate is 'rack', must be one of none, device, host"):
        Exchange(deduplicate="rack")  # type: ignore[arg-type]


@pytest.mark.parametrize("exchange", [Exchange(), Exchange("host", "cheaper"), Exchange("none", "touched")])
def test_task_files_keep_it(exchange: Exchange) -> None:
    task = Task([Table("t", 10, 4)], Topology(1, 2, "cpu", "1 GB"), 8, exchange=exchange)
    document = task_to_dict(task)
    assert ("exchange" in document) == (exchange != Exchange())
    assert task_from_dict(document) == task


def test_task_files_name_what_is_wrong() -> None:
    document = task_to_dict(Task([Table("t", 10, 4)], Topology(1, 2, "cpu", "1 GB"), 8))
    with pytest.raises(InvalidInput, match=r"exchange.*deduplicate"):
        task_from_dict(document | {"exchange": {"deduplicate": "rack"}})
