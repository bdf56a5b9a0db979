"""Times the default engine beside transformers' generate on a CPU, on the same requests in one run. No test.

OMP_NUM_THREADS=2 python tests/build/beside_transformers.py

Both are greedy, in float32, and stop at the same ids. Transformers gets one batch padded on the left, and as its rows
have one limit in common, the longest; what it writes past a row's own limit is cut off and not counted.
"""

import json
import time
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

import eagle3
from eagle3.engine.engine import Engine
from eagle3.models.checkpoint import resolve
from eagle3.text.chat import render

PROMPTS = Path(__file__).parent.parent / "data" / "prompts.jsonl"
PASSES = 3
Request = tuple[list[int], int]  # a prompt and the most new tokens


def ours(engine: Engine, requests: list[Request]) -> list[list[int]]:
    return [
        r.token_ids for r in engine.generate([p for p, _ in requests], [{"max_new_tokens": n} for _, n in requests])
    ]


def theirs(model: torch.nn.Module, requests: list[Request]) -> list[list[int]]:
    longest, most = max(len(p) for p, _ in requests), max(n for _, n in requests)
    ids = torch.tensor([[0] * (longest - len(p)) + p for p, _ in requests])
    seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p, _ in requests])
    rows = model.generate(ids, attention_mask=seen, max_new_tokens=most, do_sample=False, pad_token_id=0)  # type: ignore[operator]
    ends = model.generation_config.eos_token_id  # type: ignore[union-attr]
    ends = ends if isinstance(ends, list) else [ends]
    answers = []
    for row, (_, limit) in zip(rows[:, longest:].tolist(), requests, strict=True):
        end = next((i + 1 for i, token in enumerate(row) if token in ends), limit)  # type: ignore[operator]
        answers.append(row[: min(end, limit)])
    return answers


def main() -> None:
    engines = {"plain": ["draft=none", "spec=none"], "default": []}
    arms = {n: eagle3.load("smollm2", [*o, "runtime.max_batch_size=16"]) for n, o in engines.items()}
    target = arms["plain"].config.target
    folder = resolve(target.checkpoint, sha256=target.sha256)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()][::3][:16]
    tokenizer = arms["plain"].tokenizer
    assert tokenizer is not None
    prompts = [list(render(tokenizer, text)) for text in texts]
    loads = {
        "one request, 64 tokens": [[(p, 64)] for p in prompts[::4]],
        "16 requests, 64 tokens": [[(p, 64) for p in prompts]],
        "16 requests, 16 to 128": [[(p, (16, 48, 80, 128)[i % 4]) for i, p in enumerate(prompts)]],
    }
    table = Table("requests", "engine", "tokens", "equal answers", "tokens/s", "× transformers: min / median / max")
    for name, batches in loads.items():
        seconds: dict[str, list[float]] = {"transformers": [], **{arm: [] for arm in arms}}
        answers: dict[str, list[list[int]]] = {}
        for _ in range(PASSES):
            for arm in seconds:
                start = time.perf_counter()
                run = [theirs(model, b) if arm == "transformers" else ours(arms[arm], b) for b in batches]
                seconds[arm].append(time.perf_counter() - start)
                answers[arm] = [answer for batch in run for answer in batch]
        for arm, times in seconds.items():
            count = sum(map(len, answers[arm]))
            same = sum(a == b for a, b in zip(answers[arm], answers["transformers"], strict=True))
            ratios = sorted(b / a for a, b in zip(times, seconds["transformers"], strict=True))
            told = f"{ratios[0]:.2f} / {median(ratios):.2f} / {ratios[-1]:.2f}"
            table.add_row(name, arm, str(count), f"{same} of {len(answers[arm])}", f"{count / median(times):.1f}", told)
    Console().print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", table)


if __name__ == "__main__":
    main()
