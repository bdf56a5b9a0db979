"""The wheel carries conf/, recipes/ and what is in the box, and works from any folder."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_works_from_any_folder(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("eagle3", "conf", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, source)
    head = source / "eagle3" / "assets" / "toy"
    head.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (head / name).write_text("{}")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
    ]
    subprocess.run([*build, str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        packed.extractall(site)
    for folder in ("conf", "recipes"):
        shipped, inside = (
            {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*.yaml")}
            for root in (ROOT / folder, site / "eagle3" / folder)
        )
        assert shipped == inside
        assert len(inside) > 5
    assert "eagle3/py.typed" in names
    boxed = {p.relative_to(source).as_posix() for p in (source / "eagle3" / "assets").rglob("*") if p.is_file()}
    assert boxed == {n for n in names if n.startswith("eagle3/assets/")}

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = {**os.environ, "PYTHONPATH": str(site)}
    where = [sys.executable, "-c", "import eagle3; print(eagle3.__file__)"]
    found = subprocess.run(where, cwd=elsewhere, env=env, check=True, capture_output=True, text=True)
    assert found.stdout.startswith(str(site))
    own = ["conf=base", f"target.checkpoint={site}/eagle3/assets/toy", "draft.checkpoint=eagle3:toy"]
    pull = [sys.executable, "-m", "eagle3", "pull", *own]
    fetched = subprocess.run(pull, cwd=elsewhere, env=env, check=True, capture_output=True, text=True)
    assert fetched.stdout.splitlines() == [str(site / "eagle3" / "assets" / "toy")] * 2
    # one with a recipe: the files are the checkout's byte for byte, where all of them are checked
    check = [sys.executable, "-m", "eagle3", "check", "conf=llama8b", "recipe=sample_temperature"]
    done = subprocess.run(check, cwd=elsewhere, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = [sys.executable, "-m", "eagle3", "list"]
    listed = subprocess.run(shown, cwd=elsewhere, env=env, check=True, capture_output=True, text=True).stdout
    assert all(f"  conf={path.stem} " in listed for path in (ROOT / "conf" / "conf").glob("*.yaml"))
