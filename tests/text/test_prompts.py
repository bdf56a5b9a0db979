import io
import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.errors import ConfigError
from eagle3.text.prompts import Prompt, read_prompts

DATA = Path(__file__).parents[1] / "data" / "prompts.jsonl"


def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="ascii"))


def test_text_has_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\n  two: é\u2028x \n{3}".encode())
    assert [p.text for p in read_prompts(path)] == ["one", "  two: é\u2028x ", "{3}"]


def test_json_lines(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi\u2028there"}]
    asked = {
        "max_new_tokens": 3,
        "temperature": 1,
        "top_k": None,
        "top_p": 0.9,
        "min_p": 0.0,
        "seed": 4,
        "stop_token_ids": [5],
        "ignore_eos": True,
        "stop": ["\n"],
        "min_new_tokens": 2,
        "presence_penalty": 1,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "logprobs": None,
    }
    rows: list[dict[str, Any]] = [
        {"prompt": "a\nb", **asked},
        {"messages": messages},
        {"prompt_ids": [1, 2]},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    assert read_prompts(path) == [
        Prompt(text="a\nb", sampling=asked),
        Prompt(messages=tuple(messages)),
        Prompt(ids=(1, 2)),
    ]


@pytest.mark.parametrize(
    ("text", "prompts"),
    [
        ('{"prompt": "a"}\n\n {"prompt_ids": [1]}\n', [Prompt(text="a"), Prompt(ids=(1,))]),
        ('{"prompt": "a"}\nplain é\n', [Prompt(text='{"prompt": "a"}'), Prompt(text="plain é")]),
    ],
    ids=["json", "text"],
)
def test_stdin(monkeypatch: pytest.MonkeyPatch, text: str, prompts: list[Prompt]) -> None:
    stdin(monkeypatch, text)
    assert read_prompts("-") == prompts


WRONG = [
    ("{", "is not JSON"),
    ("[1]", "wants a JSON object, got [1]"),
    ("{}", "wants exactly one of prompt, messages, prompt_ids, got none"),
    ('{"prompt": "a", "prompt_ids": [1]}', "got prompt and prompt_ids"),
    ('{"prompt": 3}', "prompt wants a string, got 3"),
    ('{"prompt": "a", "temprature": 1}', "unknown key 'temprature'; did you mean temperature?"),
    ('{"prompt": "a", "xyz": 1}', "unknown key 'xyz'; known are prompt, messages"),
    ('{"prompt": "a", "seed": true}', "seed wants an integer, got true"),
    ('{"prompt": "a", "seed": 1.5}', "seed wants an integer, got 1.5"),
    ('{"prompt": "a", "temperature": "1"}', 'temperature wants a number, got "1"'),
    ('{"prompt": "a", "temperature": NaN}', "NaN is no JSON number"),
    ('{"prompt": "a", "top_k": "x"}', "top_k wants an integer or null"),
    ('{"prompt": "a", "ignore_eos": 1}', "ignore_eos wants true or false"),
    ('{"prompt": "a", "stop_token_ids": [1, "b"]}', "stop_token_ids wants a list of token ids"),
    ('{"prompt": "a", "stop": "x"}', 'stop wants a list of strings or null, got "x"'),
    ('{"prompt_ids": []}', "prompt_ids wants a list of token ids, got []"),
    ('{"prompt_ids": [1, true]}', "prompt_ids wants a list of token ids"),
    ('{"messages": []}', "messages wants a list of"),
    ('{"messages": [{"role": "user"}]}', "messages wants a list of"),
    ('{"messages": [{"role": "user", "content": 1}]}', "messages wants a list of"),
]


@pytest.mark.parametrize(("line", "says"), WRONG)
def test_a_bad_line(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "good"}\n\n' + line + "\n")
    with pytest.raises(ConfigError) as caught:
        read_prompts(path)
    (problem,) = caught.value.problems
    assert problem.key == f"{path}:3"
    assert says in problem.message


def test_all_bad_lines_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(line for line, _ in WRONG) + '\n{"seed": "x", "bad": 1}\n')
    with pytest.raises(ConfigError) as caught:
        read_prompts(path)
    keys = [problem.key for problem in caught.value.problems]
    last = len(WRONG) + 1
    assert keys == [f"{path}:{n}" for n in range(1, last)] + [f"{path}:{last}"] * 3


@pytest.mark.parametrize(("name", "text"), [("a.txt", "x\n\ny\n"), ("a.jsonl", '{"prompt": "x"}\n\n{"prompt": "y"}\n')])
def test_a_prompt_knows_its_line(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert [prompt.origin for prompt in read_prompts(path)] == [f"{path}:1", f"{path}:3"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="has no prompts"):
        read_prompts(tmp_path / name)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.txt: cannot be read: No such file"):
        read_prompts(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"fine\nna\xefve\n")
    with pytest.raises(ConfigError, match=r"latin\.txt:2: is not UTF-8"):
        read_prompts(tmp_path / "latin.txt")


def test_the_shipped_prompts() -> None:
    prompts = read_prompts(DATA)
    texts = [prompt.text for prompt in prompts]
    assert len(texts) == len(set(texts)) == 50
    assert all(text and len(text) > 20 for text in texts)


def test_the_shipped_prompts_are_no_filler() -> None:
    def repeats(text: str) -> float:
        words = text.split()
        return len(words) / len(set(words))

    assert repeats("the sea " * 20) > 2
    assert all(repeats(prompt.text or "") < 2 for prompt in read_prompts(DATA))
