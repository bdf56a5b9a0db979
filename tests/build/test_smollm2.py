"""The real small model: greedy text as transformers writes it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import eagle3

PROMPTS = Path(__file__).parent.parent / "data" / "prompts.jsonl"
NEAR = 1e-3  # top two logits this close may swap in float32


def compare(folder: Path, count: int, new: int) -> list[str]:
    """Serve prompts together, greedily; a line for each first difference from transformers at a sure token."""
    served = eagle3.load("smollm2", ["runtime.device=cpu", "sampling.ignore_eos=true"])
    assert served.tokenizer is not None
    texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()][:: 50 // count]
    prompts = [served.tokenizer.encode(text) for text in texts]
    ours = [r.token_ids for r in served.generate(prompts, [{"max_new_tokens": new}] * len(prompts))]
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs.generation_config.eos_token_id = None  # neither side stops early
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])  # padded on the left
    seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    answers = theirs.generate(ids, attention_mask=seen, max_new_tokens=new, do_sample=False, pad_token_id=0)
    faults, near = [], 0
    for text, prompt, got, row in zip(texts, prompts, ours, answers.tolist(), strict=True):
        want = row[longest:]
        at = next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), None)
        if at is None:
            continue
        logits = theirs(torch.tensor([prompt + want[:at]])).logits[0, -1]
        gap = (logits[want[at]] - logits[got[at]]).abs().item()
        near += gap < NEAR
        if gap >= NEAR:
            faults.append(f"{text[:40]!r}: token {at}: {got[at]} for {want[at]}, {gap} apart")
    print(f"{len(prompts)} prompts, {len(faults)} wrong, {near} where the top two are within {NEAR}")
    return faults


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.real
def test_a_few_prompts(smollm2: Path) -> None:
    assert compare(smollm2, count=5, new=24) == []


@pytest.mark.real
@pytest.mark.exhaustive
def test_fifty_prompts(smollm2: Path) -> None:
    assert compare(smollm2, count=50, new=64) == []
