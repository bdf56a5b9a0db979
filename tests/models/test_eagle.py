"""The head against a slow restatement of its mathematics, row by row over public tensors, in float64."""

from pathlib import Path

import pytest
import torch

from eagle3.config.schema import DraftConfig
from eagle3.models.eagle import EagleHead, head_names
from eagle3.models.heads import load_head
from eagle3.models.weights import plan
from helpers.heads import CPU, HT, Runner, V, Vd, assert_follows, head_config, head_tensors, random_lender, write_head
from oracles.plain_head import EPS, Plain

KINDS = {
    "gqa": {},
    "mha": {"kv_heads": 4},
    "head_dim-is-not-hidden-over-heads": {"heads": 2, "kv_heads": 1, "head_dim": 6},
    "narrower-than-the-target": {"hidden": 12, "own_embedding": True},
    "wider-than-the-target": {"hidden": 20, "own_embedding": True, "captured": 2},
    "fc-bias": {"fc_bias": True},
    "full-vocabulary": {"draft_vocab": V},
    "own-embedding": {"own_embedding": True},
    "three-layers": {"layers": 3},
}


def pair(folder: Path, kind: dict[str, int], theta: float | None = None) -> tuple[EagleHead, Plain]:
    """A head loaded from files, and its restatement."""
    tensors, lender = head_tensors(**kind), random_lender()
    heads, kv_heads = kind.get("heads", 4), kind.get("kv_heads", 2)
    config = head_config(
        hidden_size=kind.get("hidden", HT),
        target_hidden_size=HT if "hidden" in kind else None,
        num_hidden_layers=kind.get("layers", 1),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        draft_vocab_size=kind.get("draft_vocab", Vd),
        rms_norm_eps=EPS,
        rope_theta=theta,
    )
    layers = [1, 3, 4] if kind.get("captured", 3) == 3 else [2, 5]
    head, _ = load_head(
        write_head(folder, tensors, config),
        lender,
        DraftConfig(),
        layers,
        max_positions=40,
        max_seq_len=32,
        device=CPU,
    )
    return head.requires_grad_(False), Plain(tensors, lender, heads, kv_heads, theta or 10000.0)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_logits_and_feedback_over_several_steps(tmp_path: Path, kind: dict[str, int]) -> None:
    head, plain = pair(tmp_path, kind)
    assert_follows(head, plain)


@pytest.mark.parametrize("theta", [None, 500.0])
def test_theta_is_the_heads_own_or_10000(tmp_path: Path, theta: float | None) -> None:
    head, plain = pair(tmp_path, {}, theta)
    ids = torch.arange(5)
    features = torch.randn(5, HT, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    want = plain(ids, features)[0]
    torch.testing.assert_close(Runner(head)(ids, features)[0], want, rtol=0, atol=1e-10)
    plain.theta = 1e6
    assert (plain(ids, features)[0] - want).abs().max() > 1e-3, "the test would not see another theta"


def test_draft_ids_map_by_an_unsorted_d2t(tmp_path: Path) -> None:
    head, plain = pair(tmp_path, {})
    ids = torch.arange(Vd)
    want = ids + plain.w["d2t"].long()
    assert not torch.equal(want, want.sort()[0])
    assert torch.equal(head.to_target(ids), want)
    assert torch.equal(head.to_target(ids.view(4, 6)), want.view(4, 6))


def test_a_full_vocabulary_needs_no_map(tmp_path: Path) -> None:
    head, _ = pair(tmp_path, {"draft_vocab": V})
    ids = torch.arange(V)
    assert head.to_target(ids) is ids
    assert "d2t" not in head.state_dict()


def test_what_is_borrowed_is_no_parameter(tmp_path: Path) -> None:
    borrowing, _ = pair(tmp_path / "a", {})
    owning, _ = pair(tmp_path / "b", {"own_embedding": True})
    extra = owning.state_dict().keys() - borrowing.state_dict().keys()
    assert extra == {"embed.weight"}
    assert borrowing.facts.kv_heads == 2
    assert (borrowing.kv_layout.layers, borrowing.kv_layout.width) == (1, 2 * 2 * 4)


def test_a_head_computes_in_its_own_type(tmp_path: Path) -> None:
    lender = random_lender(torch.bfloat16)
    tensors = {name: value for name, value in head_tensors(draft_vocab=V).items() if name != "lm_head.weight"}
    folder = write_head(tmp_path, tensors, head_config(draft_vocab_size=None))
    head, report = load_head(
        folder,
        lender,
        DraftConfig(),
        None,
        max_positions=40,
        max_seq_len=32,
        device=CPU,
        dtype=torch.float32,
    )
    head.requires_grad_(False)
    features = head.fuse(torch.randn(3, 3 * HT, dtype=torch.bfloat16))
    logits, fed = Runner(head)(torch.arange(3), features)
    assert features.dtype == fed.dtype == torch.float32
    assert logits.shape == (3, V)
    assert report.dtype == "float32, stored as F64"


def test_the_name_map_also_exports(tmp_path: Path) -> None:
    tensors = head_tensors(own_embedding=True, fc_bias=True)
    head, _ = load_head(
        write_head(tmp_path, tensors),
        random_lender(),
        DraftConfig(),
        None,
        max_positions=40,
        max_seq_len=32,
        device=CPU,
    )
    exported = {name: part.into for name, part in plan(head, head_names()).items()}
    assert exported.keys() == tensors.keys() - {"t2d"}
    assert all(torch.equal(value, tensors[name]) for name, value in exported.items())
