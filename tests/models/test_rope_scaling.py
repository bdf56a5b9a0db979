from pathlib import Path

import pytest
import torch
from hf_llama import CPU, Requests, random_llama, same_decoder
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eagle3.errors import UnsupportedError
from eagle3.nn.rope import Rope, RopeFacts

LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 3.0, 4.0],
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
SCALINGS = {
    "default": ({"rope_type": "default"}, 64),
    "linear": ({"rope_type": "linear", "factor": 3.0}, 64),
    "dynamic-within": ({"rope_type": "dynamic", "factor": 2.0}, 64),
    "dynamic-beyond": ({"rope_type": "dynamic", "factor": 2.0}, 80),  # the prompt is as long as max_seq_len
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
    "yarn-mscale": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "mscale": 0.7,
            "mscale_all_dim": 1.0,
            "beta_fast": 16.0,
            "truncate": False,
        },
        64,
    ),
    "longrope-short": (LONG, 16),
    "longrope-long": (LONG, 64),
    "longrope-factor": (LONG | {"attention_factor": 1.5}, 64),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        64,
    ),
}
if "proportional" in ROPE_INIT_FUNCTIONS:  # newer than the oldest transformers that we support
    HALF = {"rope_type": "proportional", "factor": 2.0, "partial_rotary_factor": 0.5}
    SCALINGS["proportional"] = (HALF, 64)


@pytest.mark.parametrize(("scaling", "length"), SCALINGS.values(), ids=SCALINGS)
def test_logits_equal_transformers(scaling: dict[str, object], length: int, tmp_path: Path) -> None:
    llama = random_llama(rope_parameters={"rope_theta": 1000.0, **scaling})
    decoder = same_decoder(llama, tmp_path, max_seq_len=length)
    ids = torch.randint(0, 61, (length,), generator=torch.Generator().manual_seed(3))
    requests = Requests(decoder, 1, page=16, capacity=96)
    ours = torch.cat([requests.prompt([chunk])[0] for chunk in ids.split(24)])  # fixed, not by what has come yet
    torch.testing.assert_close(ours, llama(ids[None]).logits[0], rtol=0.0, atol=1e-10)


def facts(**scaling: object) -> RopeFacts:
    return RopeFacts.of(10000.0, 64, dict(scaling) or None)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "spiral"}, "'spiral'.*known: default.*llama3"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": "two"}, "TypeError"),
        ({"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 3, "long_factor": [1.0]}, "size"),
        ({"rope_type": "llama3", "factor": 2.0}, "freq_factor"),
        ({"partial_rotary_factor": 0.5}, "part of a head"),
    ],
)
def test_scalings_that_cannot_be_had_are_refused(scaling: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Rope(8, facts(**scaling), max_positions=8, max_seq_len=64, dtype=torch.float32, device=CPU)


def test_older_and_newer_spellings_are_one() -> None:
    assert facts(type="linear", factor=2.0) == facts(rope_type="linear", factor=2.0, attention_factor=None)
    assert facts() == facts(rope_type="default") == facts(rope_type="default", rope_theta=10000.0)
    assert facts(rope_theta=5.0).theta == 5.0
    assert facts(rope_type="yarn", factor=2.0) == facts(
        rope_type="yarn", factor=2.0, original_max_position_embeddings=64
    )


@pytest.mark.parametrize(
    ("dtype", "wide"), [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2]
)
def test_tables_reach_max_positions_in_float32_at_least(dtype: torch.dtype, wide: torch.dtype) -> None:
    rope = Rope(8, facts(), max_positions=70, max_seq_len=64, dtype=dtype, device=CPU)
    assert rope.cos.shape == rope.sin.shape == (70, 4)
    assert rope.cos.dtype == rope.sin.dtype == wide
    cos, sin = rope(torch.tensor([69, 0]))
    angle = torch.tensor(69.0).to(wide) * torch.tensor(0.1, dtype=torch.float32).to(wide)
    torch.testing.assert_close(cos[0, 1], angle.cos())
    torch.testing.assert_close(sin[0, 1], angle.sin())
    assert sin[1].eq(0).all()
