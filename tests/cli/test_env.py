"""`eagle3 env`."""

import json

import pytest
import torch

from eagle3.cli import main


def test_versions_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["env"]) == 0
    text = capsys.readouterr().out

    assert found["torch"] == torch.__version__
    assert len(found["devices"]) == max(1, torch.cuda.device_count())
    assert f"torch         {torch.__version__}" in text
