"""Tiny random models of transformers in float64, our decoder with their weights, a paged pool to run it."""

from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_rope_utils import dynamic_rope_update

from eagle3.kv.meta import PromptMeta, TreeMeta
from eagle3.kv.pool import KVPool
from eagle3.models.decoder import Decoder, ModelFacts, OnLayer
from eagle3.models.weights import load_weights
from eagle3.ops.slot_rows import entries

CPU = torch.device("cpu")


def _norm64(self: Any, x: Tensor) -> Tensor:
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    out: Tensor = self.weight * x
    return out


@dynamic_rope_update
def _rotary64(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    half = position_ids[..., None].double() * self.inv_freq.double()
    angles = torch.cat((half, half), dim=-1)
    return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling


TINY: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


def random_llama(seed: int = 0, **overrides: object) -> LlamaForCausalLM:
    """A tiny Llama."""
    return random_model(LlamaConfig(**TINY | overrides), seed)


def random_model(config: PretrainedConfig, seed: int = 0) -> Any:
    """A model whose norms and rotary tables compute in float64, with weights that tell rows apart."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    rotary = model.model.rotary_emb.inv_freq.clone()
    model = model.double().eval()
    model.model.rotary_emb.inv_freq.copy_(rotary)
    for name, value in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            nn.init.normal_(value, 1.0 if "norm" in name else 0.0, 0.3)
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = MethodType(_norm64, module)
        elif kind.endswith("RotaryEmbedding"):
            module.forward = MethodType(_rotary64, module)
    return model.requires_grad_(False)


def decoder_of(folder: Path, max_seq_len: int = 64, dtype: torch.dtype = torch.float64) -> Decoder:
    """Our decoder with the weights of a saved model."""
    facts = ModelFacts.from_hf(folder)
    model = Decoder(facts, max_positions=max_seq_len + 8, max_seq_len=max_seq_len, dtype=dtype, device=CPU)
    load_weights(model, folder, facts.family.names, tied=facts.tied_names)
    return model.requires_grad_(False)


def same_decoder(model: PreTrainedModel, folder: Path, max_seq_len: int = 64) -> Decoder:
    model.save_pretrained(folder)
    return decoder_of(folder, max_seq_len)


def drawn(parents: list[list[int]]) -> tuple[list[list[list[int]]], Tensor, Tensor]:
    """Trees by each node's parent -> per tree and node the nodes from the root to it; depth [B, N]; mask [B, N, 1]."""
    paths: list[list[list[int]]] = []
    for tree in parents:
        paths.append([])
        for node, parent in enumerate(tree):
            paths[-1].append([*(paths[-1][parent] if node else []), node])
    depth = torch.tensor([[len(path) - 1 for path in tree] for tree in paths])
    mask = torch.tensor([[[sum(1 << node for node in path)] for path in tree] for tree in paths])
    return paths, depth, mask.to(torch.int32)


class Requests:
    """B requests with shuffled pages in a pool full of NaN; `lens` counts what each has in it."""

    def __init__(self, decoder: Decoder, batch: int, page: int, capacity: int = 64, seed: int = 0) -> None:
        self.decoder, self.page = decoder, page
        each = -(-capacity // page)
        shuffled = torch.randperm(batch * each, generator=torch.Generator().manual_seed(seed)) + 1
        self.table = shuffled.view(batch, each).to(torch.int32)
        self.pool = KVPool([(decoder.kv_layout, torch.float64)], batch * each + 1, page, CPU)
        for group in self.pool.groups:
            group.fill_(torch.nan)
        self.lens = [0] * batch

    def _write_at(self, owner: list[int], at: list[int]) -> Tensor:
        return entries(self.table[owner], torch.tensor(at)[:, None], self.page).flatten()

    def prompt(self, chunks: list[list[int]], on_layer: OnLayer | None = None) -> list[Tensor]:
        """Logits [rows, V] of one forward over a chunk of every request."""
        sizes = [len(chunk) for chunk in chunks]
        owner = [b for b, size in enumerate(sizes) for _ in range(size)]
        at = [start + i for start, size in zip(self.lens, sizes, strict=True) for i in range(size)]
        self.lens = [start + size for start, size in zip(self.lens, sizes, strict=True)]
        meta = PromptMeta(
            write_at=self._write_at(owner, at),
            cu_q=torch.tensor([0, *sizes]).cumsum(0).to(torch.int32),
            kv_lens=torch.tensor(self.lens, dtype=torch.int32),
            table=self.table,
            max_q=max(sizes),
        )
        ids = torch.tensor([i for chunk in chunks for i in chunk])
        hidden = self.decoder(ids, torch.tensor(at), self.pool, meta, on_layer)
        return list(self.decoder.logits(hidden).split(sizes))

    def tree(self, tokens: Tensor, depth: Tensor, mask: Tensor | None) -> Tensor:
        """Logits [B, N, V] of one forward over `tokens` and `depth` [B, N]; `lens` stays."""
        batch, nodes = tokens.shape
        root = torch.tensor(self.lens)[:, None]
        meta = TreeMeta(
            write_at=entries(self.table, root + torch.arange(nodes), self.page).flatten(),
            kv_lens=(root[:, 0] + nodes).to(torch.int32),
            table=self.table,
            tail=nodes,
            depth=depth.to(torch.int32),
            mask=mask,
        )
        hidden = self.decoder(tokens.flatten(), (root + depth).flatten(), self.pool, meta)
        return self.decoder.logits(hidden).view(batch, nodes, -1)
