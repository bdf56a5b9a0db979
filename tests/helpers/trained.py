"""A tiny target as files, and samples that it wrote: what `eagle3 train` can be pointed at."""

import json
from pathlib import Path
from random import Random

from safetensors.torch import save_file
from transformers import LlamaConfig

from eagle3.models.decoder import Decoder
from eagle3.models.weights import plan
from eagle3.train.samples import Sample, write_samples
from helpers.pairs import engine, near_pair


def write_decoder(target: Decoder, folder: Path) -> Path:
    """A decoder of `pairs` as a checkpoint's folder."""
    known = target.facts
    folder.mkdir(parents=True)
    config = LlamaConfig(
        vocab_size=known.vocab,
        hidden_size=known.hidden,
        intermediate_size=known.intermediate,
        num_hidden_layers=known.layers,
        num_attention_heads=known.heads,
        num_key_value_heads=known.kv_heads,
        max_position_embeddings=known.max_positions,
        rms_norm_eps=known.eps,
        bos_token_id=None,
        eos_token_id=None,
    )
    told = config.to_dict() | {"architectures": [known.architecture]}
    (folder / "config.json").write_text(json.dumps(told))
    parts = plan(target, known.family.names)
    save_file({name: part.into.clone() for name, part in parts.items()}, folder / "model.safetensors")
    return folder


def answered(target: Decoder, count: int, *, new: int = 24, temperature: float = 0.0, seed: int = 0) -> list[Sample]:
    """Random prompts of 3 to 8 tokens, and the target's answers."""
    draw = Random(seed)
    prompts = [[draw.randrange(target.facts.vocab) for _ in range(draw.randint(3, 8))] for _ in range(count)]
    asked = {"max_new_tokens": new, "temperature": temperature}
    results = engine(target).generate(prompts, [asked] * count)
    samples = []
    for prompt, result in zip(prompts, results, strict=True):
        ids = (*prompt, *result.token_ids)
        samples.append(Sample(ids, ((len(prompt), len(ids)),)))
    return samples


def write_near(folder: Path, *, count: int = 48, **answers: float) -> list[str]:
    """The near target and its answers; overrides that train a head for it in float64."""
    target, _ = near_pair()
    checkpoint = write_decoder(target, folder / "target")
    write_samples(folder / "data", answered(target, count, **answers), answered(target, 8, seed=1, **answers), {})
    return [
        "conf=base",
        f"target.checkpoint={checkpoint}",
        "target.dtype=float64",
        "runtime.device=cpu",
        "runtime.max_seq_len=128",
        "kv.max_tokens=1024",
        f"train.data={folder / 'data'}",
        f"train.out={folder / 'head'}",
        "train.layers_to_capture=[0,1,2]",
        "train.steps=4",
        "train.seq_len=64",
        "train.batch_size=4",
        "train.lr=0.01",
    ]
