import sys

import pytest


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["demo"], "measure"),
        (["collect", "-o", "samples"], "measure"),
        (["compare", "task.yaml", "--measure"], "measure"),
        (["verify", "plan.json"], "measure"),
        (["train", "samples", "-o", "model.safetensors"], "learn"),
    ],
)
def test_without_torch_the_message_says_what_to_install(cli, tmp_path, monkeypatch, arguments, extra):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.chdir(tmp_path)
    outcome = cli(*arguments, "--json")
    assert outcome.code == 1
    assert outcome.document["error"]["type"] == "MissingDependency"
    assert f"pip install 'shardwright[{extra}]'" in outcome.err
    assert list(tmp_path.iterdir()) == []
