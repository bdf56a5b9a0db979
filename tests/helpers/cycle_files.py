"""The cycle pair of `pairs` as published files: what a command line can be pointed at."""

from collections.abc import Collection
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from helpers.checkpoints import write_tokenizer
from helpers.heads import head_config, write_head
from helpers.pairs import cycle_pair

V = 64


def write_cycle(folder: Path, *, bad: Collection[int] = (), tokenizer: bool = False) -> list[str]:
    """Overrides that run the pair: the target says t + 1 after t, the head knows it but for `bad`."""
    target, head = cycle_pair(V, bad)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=V,
        intermediate_size=2 * V,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
    )
    llama = LlamaForCausalLM(config).double()
    assert target.lm_head is not None
    with torch.no_grad():
        llama.model.embed_tokens.weight.copy_(target.embed.weight)
        llama.lm_head.weight.copy_(target.lm_head.weight)
        for layer in llama.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    llama.save_pretrained(folder / "target")
    if tokenizer:
        write_tokenizer(folder / "target")

    (layer,) = head.layers
    gate, up = layer.mlp.gate_up.weight.chunk(2)
    assert head.lm_head is not None
    one = torch.ones(V, dtype=torch.float64)
    tensors = {
        "fc.weight": head.fc.weight,
        "midlayer.input_layernorm.weight": one,
        "midlayer.hidden_norm.weight": one,
        "midlayer.self_attn.q_proj.weight": torch.zeros(V, 2 * V, dtype=torch.float64),
        "midlayer.self_attn.k_proj.weight": torch.zeros(V // 2, 2 * V, dtype=torch.float64),
        "midlayer.self_attn.v_proj.weight": torch.zeros(V // 2, 2 * V, dtype=torch.float64),
        "midlayer.self_attn.o_proj.weight": layer.attn.o.weight,
        "midlayer.post_attention_layernorm.weight": one,
        "midlayer.mlp.gate_proj.weight": gate,
        "midlayer.mlp.up_proj.weight": up,
        "midlayer.mlp.down_proj.weight": layer.mlp.down.weight,
        "norm.weight": one,
        "lm_head.weight": head.lm_head.weight,
    }
    sizes = {"hidden_size": V, "intermediate_size": V, "vocab_size": V, "draft_vocab_size": V, "rms_norm_eps": 1e-6}
    write_head(folder / "head", {name: t.clone() for name, t in tensors.items()}, head_config(**sizes))
    small = ["runtime.max_seq_len=100", "runtime.max_batch_size=2", "target.dtype=float64", "draft.dtype=float64"]
    paths = [f"target.checkpoint={folder / 'target'}", "draft=eagle3", f"draft.checkpoint={folder / 'head'}"]
    return ["conf=base", *paths, *small]


TREE = [
    "spec=tree",
    "spec.max_draft_len=3",
    "spec.dynamic_tree_max_topK=2",
    "spec.max_total_draft_tokens=6",
]
