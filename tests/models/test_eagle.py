"""The head against a slow restatement of its mathematics, row by row over public tensors, in float64."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle3.config.schema import DraftConfig
from eagle3.kv.meta import PromptMeta
from eagle3.kv.pool import KVPool
from eagle3.models.draft import DraftModel
from eagle3.models.eagle import EagleHead, Lender, head_names
from eagle3.models.heads import load_head
from eagle3.models.weights import plan
from eagle3.nn.attention import Core, PagedCore
from helpers.heads import CPU, HT, V, Vd, head_config, head_tensors, random_lender, write_head

EPS = 1e-5
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


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def turn(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of one head [hd] at one position: the pair (i, i + hd / 2) as a complex number."""
    half = len(x) // 2
    frequency = 1.0 / theta ** (torch.arange(half, dtype=torch.float32) / half)  # float32 wherever heads are trained
    angle = position * frequency.double()
    turned = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones(half, dtype=torch.float64), angle)
    return torch.cat([turned.real, turned.imag])


class Plain:
    """A head over one sequence, without a cache: every row, head and key in a loop."""

    def __init__(self, tensors: dict[str, Tensor], lender: Lender, heads: int, kv_heads: int, theta: float) -> None:
        self.w = {name.replace("midlayer", "layers.0"): value.double() for name, value in tensors.items()}
        self.heads, self.kv_heads, self.theta = heads, kv_heads, theta
        self.embed = self.w.get("embed_tokens.weight", lender.embed.weight.detach())
        assert lender.lm_head is not None
        self.lm_head = self.w.get("lm_head.weight", lender.lm_head.weight.detach())
        self.layers = len({name.split(".")[1] for name in self.w if name.startswith("layers.")})

    def fuse(self, captured: Tensor) -> Tensor:
        return captured @ self.w["fc.weight"].T + self.w.get("fc.bias", 0)

    def __call__(self, ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """ids [T], features [T, H] from position 0 on -> logits [T, Vd], feedback [T, H]."""
        g = features
        for i in range(self.layers):
            name = f"layers.{i}."
            u = norm(g, self.w[name + "hidden_norm.weight"])
            if i == 0:
                u = torch.cat([norm(self.embed[ids], self.w[name + "input_layernorm.weight"]), u], dim=1)
            a = g + self.attend(u, name + "self_attn.")
            m = norm(a, self.w[name + "post_attention_layernorm.weight"])
            gate, up = (m @ self.w[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            g = a + (gate * torch.sigmoid(gate) * up) @ self.w[name + "mlp.down_proj.weight"].T
        return norm(g, self.w["norm.weight"]) @ self.lm_head.T, g

    def attend(self, u: Tensor, name: str) -> Tensor:
        q, k, v = (u @ self.w[f"{name}{part}_proj.weight"].T for part in "qkv")
        q = q.view(len(u), self.heads, -1)
        k, v = (x.view(len(u), self.kv_heads, -1) for x in (k, v))
        out = torch.zeros_like(q)
        for t in range(len(u)):
            for h in range(self.heads):
                one = h // (self.heads // self.kv_heads)
                keys = torch.stack([turn(k[s, one], s, self.theta) for s in range(t + 1)])
                scores = keys @ turn(q[t, h], t, self.theta) / q.shape[2] ** 0.5
                out[t, h] = scores.softmax(0) @ v[: t + 1, one]
        return out.flatten(1) @ self.w[name + "o_proj.weight"].T


class Runner:
    """Our head over one sequence on a pool of small pages, rows fed as they come."""

    def __init__(self, head: EagleHead) -> None:
        self.head: DraftModel = head
        self.pool = KVPool([(head.kv_layout, head.dtype)], pages=9, page=4, device=CPU)
        self.table = torch.tensor([[5, 2, 8, 1, 7, 3, 4, 6]], dtype=torch.int32)
        self.length = 0

    def __call__(self, ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Like `Plain`, over the rows that are new."""
        at = self.length + torch.arange(len(ids))
        self.length += len(ids)
        meta = PromptMeta(
            write_at=self.table[0, at // 4].long() * 4 + at % 4,
            cu_q=torch.tensor([0, len(ids)], dtype=torch.int32),
            kv_lens=torch.tensor([self.length], dtype=torch.int32),
            table=self.table,
            max_q=len(ids),
        )
        cores: Callable[[int], Core] = lambda i: PagedCore(self.pool.layer(i), meta, self.head.scale)  # noqa: E731
        out, feedback = self.head.forward(ids, features, at, cores)
        return self.head.logits(out), feedback


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
    make = torch.Generator().manual_seed(1)
    captured = torch.randn(6, head.facts.captured * HT, generator=make, dtype=torch.float64)
    ids = torch.randint(V, (6,), generator=make)
    run = Runner(head)

    features = plain.fuse(captured)
    torch.testing.assert_close(head.fuse(captured), features, rtol=0, atol=1e-12)
    got, fed = run(ids[:4], features[:4])  # in two chunks
    more, fed_more = run(ids[4:], features[4:])
    got, fed = torch.cat([got, more]), torch.cat([fed, fed_more])
    want, want_fed = plain(ids, features)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    torch.testing.assert_close(fed, want_fed, rtol=0, atol=1e-10)

    for _ in range(3):  # the feedback of the last row, as it is, is the next row's feature
        token = head.to_target(got[-1:].argmax(1))
        ids, features = torch.cat([ids, token]), torch.cat([features, want_fed[-1:]])
        got, fed = run(token, fed[-1:])
        want, want_fed = plain(ids, features)
        torch.testing.assert_close(got, want[-1:], rtol=0, atol=1e-10)
        torch.testing.assert_close(fed, want_fed[-1:], rtol=0, atol=1e-10)


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
