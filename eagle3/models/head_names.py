"""The names of a head's tensors: one public name for all that trainers and exporters call them."""

import re
from collections.abc import Iterable

from eagle3.errors import UnsupportedError

_PREFIX = re.compile(r"(model|module|draft_model|eagle_module)\.")
_DROPPED = re.compile(r"(verifier_norm|verifier_lm_head|target_model)\.")  # left over from training
_ALIASES = {
    "eagle_lm_head.": "lm_head.",  # raw trainer states
    "input_embeds_norm.": "layers.0.input_layernorm.",
    "hidden_norm.": "layers.0.hidden_norm.",
    "draft_id_to_target_id": "d2t",
    "aux_norm_low.": "fc_norm.0.",  # EAGLE-3.1 as it was named at first
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}
_OTHERS = {
    "multi-head latent attention": r"layers\.\d+\.self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\.",
    "parallel drafting (P-EAGLE)": r"mask_hidden$",
    "Medusa heads": r"parallel_draft_heads\.",
    "quantised weights": r".*\.(weight_scale|weight_scale_2|input_scale|weight_packed|qweight|qzeros|scales)$",
}


def public_name(stored: str) -> str | None:
    """The name in a file -> the public one, layers as layers.{i}; None for what a trainer left behind."""
    name = stored
    while match := _PREFIX.match(name):
        if _DROPPED.match(name):
            return None
        name = name[match.end() :]
    if _DROPPED.match(name):
        return None
    for alias, known in _ALIASES.items():
        if name.startswith(alias):
            return known + name[len(alias) :]
    name = re.sub(r"^midlayer\.(?=\d+\.)", "layers.", name)
    return re.sub(r"^midlayer\.", "layers.0.", name)


def public_names(stored: Iterable[str]) -> dict[str, str | None]:
    """All names of a checkpoint -> the public ones, where the one norm of an ordinary layer is hidden_norm.

    Raises UnsupportedError for tensors of another kind of head, by its name.
    """
    found = {name: public_name(name) for name in stored}
    known = {name for name in found.values() if name is not None}
    for what, pattern in _OTHERS.items():
        if theirs := sorted(name for name in known if re.match(pattern, name)):
            raise UnsupportedError(f"{what} is not supported; the head has {theirs[0]}")
    lone = {}
    for layer in {".".join(name.split(".")[:2]) for name in known if name.startswith("layers.")}:
        pairs = f"{layer}.hidden_norm.weight" in known or (layer == "layers.0" and "eh_proj.weight" not in known)
        if not pairs:
            lone[f"{layer}.input_layernorm.weight"] = f"{layer}.hidden_norm.weight"
    return {name: public if public is None else lone.get(public, public) for name, public in found.items()}
