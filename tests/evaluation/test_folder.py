"""The folder of an evaluation, where it cannot be used."""

import pytest

from minirl.evaluation.folder import Folder
from minirl.utils.errors import ConfigError


@pytest.mark.parametrize("name", ["x" * 300, "ä" * 200])
def test_a_name_that_is_too_long_for_the_file_system_is_bad_input(tmp_path, name):
    with pytest.raises(ConfigError, match=r"cannot use the folder .*too long"):
        Folder(tmp_path / name).check({})
