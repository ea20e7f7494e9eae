"""ARCHITECTURE.md names what there is."""

import re
from pathlib import Path

import pytest

import shardwright

ROOT = Path(__file__).parents[2]
PACKAGE = Path(shardwright.__file__).parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def layers() -> list[str]:
    """The names in the map of the layers: those of folders end in a slash."""
    (block,) = re.findall(r"^    src/shardwright/\n((?:      .*\n)+)", PAGE, re.MULTILINE)
    return [line.split()[0] for line in block.splitlines() if not line.strip().startswith("#")]


def test_the_map_names_every_file_and_folder_of_the_package_once():
    found = [
        path.name + "/" * path.is_dir()
        for path in PACKAGE.iterdir()
        if path.name != "__pycache__" and not path.name.startswith(".") and path.suffix != ".so"
    ]
    assert sorted(layers()) == sorted(found)


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(\w+/\w[\w/.]*)`", PAGE))))
def test_what_the_page_names_by_its_whole_path_exists(named):
    assert (PACKAGE / named).exists() or (ROOT / named).exists()
