import os

import pytest

from shardwright.cli.targets import check_folder, check_target, make_folder
from shardwright.errors import InvalidInput


def test_what_can_be_made_passes(tmp_path):
    check_target(None)
    check_target(tmp_path / "plan.json")
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "deep")
    assert list(tmp_path.iterdir()) == []
    make_folder(tmp_path / "new" / "deep")
    make_folder(tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep").is_dir()


def test_a_file_is_no_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "inside"):
        with pytest.raises(InvalidInput, match="is no folder"):
            check_folder(path)
        with pytest.raises(InvalidInput, match="cannot be made"):
            make_folder(path)
    with pytest.raises(InvalidInput, match="its folder does not exist"):
        check_target(file / "plan.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidInput, match="may not be written to"):
        check_folder(tmp_path / "new")
