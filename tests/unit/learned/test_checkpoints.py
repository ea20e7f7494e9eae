import numpy as np
import pytest
import torch

from shardwright.errors import InvalidInput
from shardwright.learned.checkpoints import check_same_training, load_checkpoint, save_checkpoint
from shardwright.learned.options import DreamShardOptions
from shardwright.learned.trainer import learn
from shardwright.learned.worlds import SimulatedWorld
from shardwright.testing.model import SimpleCostModel
from tests.unit.learned.autoshard.made import QUICK, simulated, varied_task
from tests.unit.learned.dreamshard.policies import training_set


def test_tensors_of_any_type_and_state_survive(tmp_path):
    base = torch.arange(12).reshape(3, 4)
    tensors = {"a": base.t(), "b": base[1], "flags": base > 3, "empty": torch.zeros(0, 2), "scalar": torch.tensor(2.5)}
    state = {"step": 7, "options": {"seed": 2**100}, "names": ["x", None, True]}
    save_checkpoint(tmp_path / "state", tensors, state)
    loaded, loaded_state = load_checkpoint(tmp_path / "state")
    assert loaded_state == state
    assert loaded.keys() == tensors.keys()
    for name, value in tensors.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value)


def test_without_a_file_there_is_no_checkpoint(tmp_path):
    assert load_checkpoint(tmp_path / "none") is None


def test_a_failed_write_keeps_the_last_checkpoint(tmp_path):
    path = tmp_path / "state"
    save_checkpoint(path, {"a": torch.ones(1)}, {"step": 1})
    with pytest.raises(TypeError):
        save_checkpoint(path, {"a": torch.zeros(1)}, {"step": object()})
    assert load_checkpoint(path)[1] == {"step": 1}


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    state = {"options": {"seed": 0, "dims": [1, 2]}, "world": "simulated: cpu", "step": 3}
    check_same_training(tmp_path, state, {"options": {"seed": 0, "dims": (1, 2)}, "world": "simulated: cpu"})
    with pytest.raises(InvalidInput, match="made with world 'simulated: cpu', this training has 'measured: cpu'"):
        check_same_training(tmp_path, state, {"world": "measured: cpu"})


def autoshard(path):
    learn([varied_task(seed) for seed in range(3)], simulated(), QUICK, checkpoint=path)


def dreamshard(path):
    sizes = {"collected": 4, "cost_updates": 1, "cost_batch": 4, "policy_updates": 1, "policy_tasks": 1, "episodes": 2}
    options = DreamShardOptions(iterations=2, explored=4, variants=1, **sizes)
    learn(training_set(3), SimulatedWorld(SimpleCostModel()), options, checkpoint=path)


def longer(tensor):
    return torch.cat([tensor, tensor[:1]]) if tensor.dim() else tensor.reshape(1)


def out_of_range(tensor):
    return torch.full_like(tensor, torch.iinfo(tensor.dtype).max if tensor.dtype == torch.int64 else float("nan"))


@pytest.mark.slow
@pytest.mark.parametrize("learn", [autoshard, dreamshard])
def test_a_checkpoint_whose_parts_do_not_fit_is_refused_and_kept(tmp_path, learn):
    path = tmp_path / "state"
    learn(path)
    tensors, state = load_checkpoint(path)
    other = np.random.MT19937(0).state
    other["state"]["key"] = other["state"]["key"].tolist()
    one_of_a_kind = {(name.split(".")[0], name.split(".")[-1]): name for name in tensors}.values()
    hostile = [
        *({name: kept for name, kept in tensors.items() if name != gone} for gone in one_of_a_kind),
        *(tensors | {name: change(tensors[name])} for name in one_of_a_kind for change in (longer, torch.Tensor.bool)),
        *(
            tensors | {name: out_of_range(tensors[name])}
            for name in tensors
            if name.startswith("buffer.") or name in ("blocks", "costs")
        ),
    ]
    counts = [name for name in ("iteration", "round", "learner_steps", "added") if name in state]
    random = state["rng"]
    states = [
        *(state | {name: value} for name in counts for value in (-1, 1.5, "1", None)),
        *({name: kept for name, kept in state.items() if name != gone} for gone in counts),
        *(state | {"rng": value} for value in (None, 3, {}, other)),
        *(state | {"rng": random | {"torch": text}} for text in ("", "AAAA", "ä") if "torch" in random),
        *(state | {"rng": random | {"numpy": value}} for value in ("", other, None) if "torch" in random),
    ]
    for broken, said in [*((damaged, state) for damaged in hostile), *((tensors, damaged) for damaged in states)]:
        save_checkpoint(path, broken, said)
        before = path.read_bytes()
        with pytest.raises(InvalidInput, match=f"^{path}: the checkpoint does not fit this training .*remove it"):
            learn(path)
        assert path.read_bytes() == before
