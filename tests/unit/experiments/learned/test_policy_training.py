import pytest

pytest.importorskip("torch", reason="policies are learned with torch")

import torch
from experiments.learned.policy_training import learned, training_seconds

from shardwright.errors import InvalidInput
from shardwright.learned.options import DreamShardOptions
from shardwright.testing.tasks import task_of

SHORT = DreamShardOptions(iterations=1, cost_updates=2, policy_updates=1, collected=4, explored=8, variants=0)
TASKS = [task_of(6, 2)]


def test_a_policy_is_kept_by_what_it_was_learned_from(tmp_path):
    one = learned("dreamshard", "six", TASKS, SHORT, tmp_path / "new")
    assert learned("dreamshard", "six", TASKS, SHORT, tmp_path / "new") == one
    other = learned("dreamshard", "six", [task_of(7, 2)], SHORT, tmp_path / "new")
    assert one.parent == other.parent
    assert one != other
    assert one.read_bytes() != other.read_bytes()
    assert training_seconds("dreamshard", one) > 0


def test_training_leaves_torchs_threads_alone(tmp_path):
    before = torch.get_num_threads()
    learned("dreamshard", "six", TASKS, SHORT, tmp_path)
    assert torch.get_num_threads() == before


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot keep policies there"):
        learned("dreamshard", "six", TASKS, SHORT, tmp_path / "file" / "policies")
