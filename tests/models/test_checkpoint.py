from pathlib import Path

import pytest

from eagle3.errors import Eagle3Error, WeightError
from eagle3.models import checkpoint as module
from eagle3.models.checkpoint import resolve


def checkpoint(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("{}")
    return folder


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a", "config.json", "model-00001-of-00002.safetensors")
    assert resolve(str(folder)) == folder


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["model.safetensors"], "has no config.json"),
        (["config.json"], "its config.json says nothing, and it has no weights"),
    ],
)
def test_a_local_folder_that_lacks_something(tmp_path: Path, files: list[str], says: str) -> None:
    folder = checkpoint(tmp_path / "a", *files)
    with pytest.raises(WeightError, match=says):
        resolve(str(folder))


@pytest.mark.parametrize(
    ("content", "says"), [("", r"a: its config.json cannot be read \(.*\), and it has no"), ('{"a": 1}', "a: has no")]
)
def test_a_config_that_cannot_be_read_is_told_before_weights_that_are_not_there(
    tmp_path: Path, content: str, says: str
) -> None:
    (checkpoint(tmp_path / "a") / "config.json").write_text(content)
    with pytest.raises(WeightError, match=f"{says} weights"):
        resolve(str(tmp_path / "a"))


@pytest.mark.parametrize(
    "path", ["/no/such/folder", "./nothing", "../a/b", "~/nothing-here", "bare-name", "a" * 97 + "/b", "ä/b"]
)
def test_a_path_that_is_not_there(path: str) -> None:
    with pytest.raises(WeightError, match="no such folder; a checkpoint is a local folder, a hub id"):
        resolve(path)


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_text("")
    with pytest.raises(WeightError, match="is a file; a checkpoint is the folder"):
        resolve(str(tmp_path / "x.safetensors"))


def test_an_offline_hub_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightError, match="the hub cannot be reached; connect once") as caught:
        resolve("nobody/nothing-of-this-name", revision="v1")
    assert "nobody/nothing-of-this-name at revision v1" in str(caught.value)
    assert "\n" not in str(caught.value)


def hub_error(name: str) -> Exception:
    from huggingface_hub import errors

    kind: type[Exception] = getattr(errors, name)
    error = kind.__new__(kind)  # the constructors want a response of whichever HTTP client the hub uses
    error.args = ("first\nlast line",)
    return error


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("GatedRepoError", "is gated; accept its terms"),
        ("RevisionNotFoundError", "has no revision 'r'"),
        ("RepositoryNotFoundError", "the hub has none of that name"),
        ("HfHubHTTPError", "the download failed: last line"),
        ("HFValidationError", "the download failed: last line"),
    ],
)
def test_what_the_hub_answers(monkeypatch: pytest.MonkeyPatch, fault: str, says: str) -> None:
    import huggingface_hub

    def download(repo: str, **options: object) -> str:
        raise hub_error(fault)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(Eagle3Error, match=says):
        resolve("org/name", revision="r")


@pytest.mark.parametrize(
    ("kind", "calls"), [("model.safetensors", 1), ("pytorch_model.bin", 2)], ids=["safetensors", "bin"]
)
def test_a_hub_id_takes_bin_files_only_where_there_are_no_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, calls: int
) -> None:
    import huggingface_hub

    seen: list[list[str]] = []

    def download(repo: str, *, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert (repo, revision, ignore_patterns) == ("org/name", "abc", ["*/*"])
        seen.append(allow_patterns)
        (tmp_path / "config.json").write_text("{}")
        if "*" + Path(kind).suffix in allow_patterns:
            (tmp_path / kind).write_text("")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("org/name", revision="abc") == tmp_path
    assert len(seen) == calls


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EAGLE3_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert module.cache_folder() == tmp_path / "eagle3"
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "own"))
    assert module.cache_folder() == tmp_path / "own"
