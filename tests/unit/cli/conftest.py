import json

import pytest

import shardwright as sw
from shardwright.cli.main import main
from shardwright.cost import save_model
from shardwright.testing.tasks import task_of
from tests.json_documents import check_document
from tests.unit.cli.models import linear_model


class Outcome:
    """The result of a command: exit code, stdout, stderr."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def document(self):
        return json.loads(self.out)  # fails on anything but one JSON document


@pytest.fixture
def cli(capsys):
    """Runs a command line in this process."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        if "--json" in arguments and captured.out.startswith("{") and captured.out.count("\n{") == 0:
            check_document([str(argument) for argument in arguments], captured.out)
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def task_file(tmp_path):
    path = tmp_path / "task.yaml"
    task_of(12, 4).save(path)
    return path


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(linear_model(), path)
    return path


@pytest.fixture
def plan_file(task_file, tmp_path):
    """A plan of the task, by the model, with room for improvement."""
    path = tmp_path / "plan.json"
    sw.plan(sw.Task.load(task_file), strategy="random", cost_model=linear_model()).save(path)
    return path
