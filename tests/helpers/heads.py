"""Tiny random EAGLE-3 heads as public files, and targets that lend to them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3.config.schema import DraftConfig
from eagle3.kv.meta import PromptMeta
from eagle3.kv.pool import KVPool
from eagle3.models.draft import DraftModel
from eagle3.models.eagle import EagleHead
from eagle3.models.head_facts import Lender
from eagle3.models.heads import HeadReport, load_head
from eagle3.nn.attention import Core, PagedCore
from eagle3.nn.embedding import Embedding
from eagle3.nn.linear import Linear
from oracles.plain_head import Plain

V, Vd, HT, L = 40, 24, 16, 8  # target vocabulary, draft vocabulary, target width, target layers
CPU = torch.device("cpu")


def random_lender(dtype: torch.dtype = torch.float64, seed: int = 9) -> Lender:
    """A target's embedding and output head."""
    make = torch.Generator().manual_seed(seed)
    embed = Embedding(V, HT, dtype=dtype, device=CPU)
    lm_head = Linear(HT, V, dtype=dtype, device=CPU)
    with torch.no_grad():
        for weight in (embed.weight, lm_head.weight):
            weight.copy_(torch.randn(weight.shape, generator=make, dtype=torch.float64))
    return Lender(HT, V, L, embed.requires_grad_(False), lm_head.requires_grad_(False))


def unsorted_map(seed: int = 3) -> tuple[Tensor, Tensor]:
    """d2t [Vd] of distinct target ids in no order, and its t2d [V]."""
    ids = torch.randperm(V, generator=torch.Generator().manual_seed(seed))[:Vd]
    t2d = torch.zeros(V, dtype=torch.bool)
    t2d[ids] = True
    return ids - torch.arange(Vd), t2d


def head_tensors(
    *,
    hidden: int = HT,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 4,
    intermediate: int = 20,
    draft_vocab: int = Vd,
    captured: int = 3,
    layers: int = 1,
    fc_bias: bool = False,
    own_embedding: bool = False,
    fc: bool = True,
    norm_before_fc: bool = False,
    fc_norm: bool = False,
    eh_proj: bool = False,
    eh_bias: bool = False,
    all_pair: bool = False,
    qk_norm: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> dict[str, Tensor]:
    """All tensors of a head under their public names; several layers as layers.{i}."""
    make = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=make, dtype=torch.float64) * 0.4).to(dtype)

    tensors = {"fc.weight": draw(hidden, captured * HT)} if fc else {}
    if fc_bias:
        tensors["fc.bias"] = draw(hidden)
    for i in range(layers):
        at = "midlayer" if layers == 1 else f"layers.{i}"
        pairs = not eh_proj and (i == 0 or all_pair)
        width = 2 * hidden if pairs else hidden
        if pairs:
            tensors[f"{at}.input_layernorm.weight"] = 1 + draw(hidden)
        tensors |= {
            f"{at}.hidden_norm.weight": 1 + draw(hidden),
            f"{at}.self_attn.q_proj.weight": draw(heads * head_dim, width),
            f"{at}.self_attn.k_proj.weight": draw(kv_heads * head_dim, width),
            f"{at}.self_attn.v_proj.weight": draw(kv_heads * head_dim, width),
            f"{at}.self_attn.o_proj.weight": draw(hidden, heads * head_dim),
            f"{at}.post_attention_layernorm.weight": 1 + draw(hidden),
            f"{at}.mlp.gate_proj.weight": draw(intermediate, hidden),
            f"{at}.mlp.up_proj.weight": draw(intermediate, hidden),
            f"{at}.mlp.down_proj.weight": draw(hidden, intermediate),
        }
    tensors |= {"norm.weight": 1 + draw(hidden), "lm_head.weight": draw(draft_vocab, hidden)}
    if own_embedding:
        tensors["embed_tokens.weight"] = draw(V, hidden)
    if norm_before_fc:
        tensors["input_norm.weight"] = 1 + draw(captured * HT)
    if fc_norm:
        tensors |= {f"fc_norm.{i}.weight": 1 + draw(HT) for i in range(captured)}
    if eh_proj:
        tensors |= {"enorm.weight": 1 + draw(hidden), "eh_proj.weight": draw(hidden, 2 * hidden)}
    if eh_bias:
        tensors["eh_proj.bias"] = draw(hidden)
    if qk_norm:
        at = ["midlayer"] if layers == 1 else [f"layers.{i}" for i in range(layers)]
        tensors |= {f"{a}.self_attn.{part}_norm.weight": 1 + draw(head_dim) for a in at for part in "qk"}
    if draft_vocab < V:
        tensors["d2t"], tensors["t2d"] = unsorted_map()
    return tensors


def head_config(**overrides: object) -> dict[str, Any]:
    """A config.json for `head_tensors` as it is by default; an override of None leaves the field out."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HT,
        "intermediate_size": 20,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": V,
        "draft_vocab_size": Vd,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": "float16",
    }
    return {key: value for key, value in (config | overrides).items() if value is not None}


def write_head(
    folder: Path,
    tensors: dict[str, Tensor] | None = None,
    config: dict[str, Any] | None = None,
    kind: str = "safetensors",  # safetensors | sharded | bin
) -> Path:
    """A head's folder as it is published."""
    tensors = head_tensors() if tensors is None else tensors
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(head_config() if config is None else config))
    if kind == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    elif kind == "safetensors":
        save_file(tensors, folder / "model.safetensors")
    else:
        names = sorted(tensors)
        shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, mine in shards.items():
            save_file({name: tensors[name] for name in mine}, folder / file)
        index = {"weight_map": {name: file for file, mine in shards.items() for name in mine}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def load(
    folder: Path, cfg: DraftConfig | None = None, user: list[int] | None = None, lender: Lender | None = None
) -> tuple[EagleHead, HeadReport]:
    """`load_head` on a CPU, for short sequences."""
    return load_head(
        folder,
        lender or random_lender(),
        cfg or DraftConfig(),
        user,
        max_positions=40,
        max_seq_len=32,
        device=CPU,
    )


class Runner:
    """Our head over one sequence on a pool of small pages, rows fed as they come."""

    def __init__(self, head: EagleHead) -> None:
        self.head: DraftModel = head
        self.pool = KVPool([(head.kv_layout, head.dtype)], pages=9, page=4, device=CPU)
        self.table = torch.tensor([[5, 2, 8, 1, 7, 3, 4, 6]], dtype=torch.int32)
        self.length = 0

    def __call__(self, ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Like `oracles.plain_head.Plain`, over the rows that are new: ids [T], features [T, H] -> logits, feedback."""
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


def assert_follows(head: EagleHead, plain: Plain) -> None:
    """Logits and feedback of a prompt in two chunks, then of three steps on the head's own feedback."""
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
