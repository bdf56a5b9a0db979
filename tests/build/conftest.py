import shutil
from pathlib import Path

import pytest

from helpers.cycle_files import write_cycle


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and its head, in folders of these names."""
    folder = tmp_path_factory.mktemp("pair")
    write_cycle(folder)
    return folder


@pytest.fixture
def pair(written: Path, tmp_path: Path) -> Path:
    """A copy to be broken."""
    return Path(shutil.copytree(written, tmp_path / "pair"))
