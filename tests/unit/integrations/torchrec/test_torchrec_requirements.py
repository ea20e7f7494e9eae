"""Messages if TorchRec or FBGEMM is missing, or if their versions do not match."""

import subprocess
import sys

import pytest

from shardwright.errors import MissingDependency
from shardwright.integrations.torchrec import requirements


def releases(**versions):
    return lambda name: versions.get(name.replace("-", "_"))


@pytest.mark.parametrize(
    "versions",
    [
        {"torch": "2.13", "fbgemm_gpu": "1.8", "torchrec": "1.8"},
        {"torch": "2.13", "fbgemm_gpu_cpu": "1.8", "torchrec": "1.8"},
        {"torch": "2.11", "fbgemm_gpu": "1.6", "torchrec": "1.6"},
        {"torch": "2.99", "fbgemm_gpu": "9.9", "torchrec": "9.9"},  # newer than known releases: only equality counts
        {"torch": "2.13"},  # built from source, without a version
    ],
)
def test_matching_sets_pass(versions):
    requirements.check_versions(releases(**versions))


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"torch": "2.13", "fbgemm_gpu": "1.6", "torchrec": "1.6"}, "torch 2.13 does not go with FBGEMM 1.6"),
        ({"torch": "2.11", "fbgemm_gpu": "1.8", "torchrec": "1.8"}, "torch 2.11 goes with FBGEMM 1.6"),
        ({"torch": "2.13", "fbgemm_gpu_cpu": "1.8", "torchrec": "1.6"}, "TorchRec 1.6 does not go with FBGEMM 1.8"),
    ],
)
def test_other_sets_are_named_with_the_remedy(versions, said):
    with pytest.raises(MissingDependency, match=said) as caught:
        requirements.check_versions(releases(**versions))
    assert "pip install torch==" + versions["torch"] in str(caught.value)


def test_a_missing_package_is_named_with_the_install_command(monkeypatch):
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "torchrec" else object())
    with pytest.raises(MissingDependency, match=r"needs TorchRec, not installed; install with: pip install torch=="):
        requirements.require_torchrec()


def test_using_a_name_of_the_package_raises_the_same_message(monkeypatch):
    import shardwright.integrations.torchrec as package

    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "fbgemm_gpu" else object())
    with pytest.raises(MissingDependency, match="FBGEMM"):
        package.__getattr__("ShardwrightPlanner")
    with pytest.raises(AttributeError, match="no attribute 'Planner'"):
        package.__getattr__("Planner")


def test_importing_the_package_loads_no_torch():
    code = "import sys, shardwright.integrations.torchrec; sys.exit(bool({'torch', 'torchrec', 'fbgemm_gpu'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
