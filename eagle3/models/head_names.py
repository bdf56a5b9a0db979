"""The names of a head's tensors: one public name for all that trainers and exporters call them."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

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
        if theirs := sorted(name for name, public in found.items() if public and re.match(pattern, public)):
            raise UnsupportedError(f"{what} is not supported; the head has {theirs[0]}")
    lone = {}
    for layer in {".".join(name.split(".")[:2]) for name in known if name.startswith("layers.")}:
        pairs = f"{layer}.hidden_norm.weight" in known or (layer == "layers.0" and "eh_proj.weight" not in known)
        if not pairs:
            lone[f"{layer}.input_layernorm.weight"] = f"{layer}.hidden_norm.weight"
    return {name: public if public is None else lone.get(public, public) for name, public in found.items()}


def other_kind(names: Collection[str]) -> str | None:
    """What tensors of these public names seem to be where they are no EAGLE-3 head; None where they may be one."""
    if any(re.fullmatch(r"(medusa_head\.)?\d+\.\d+\.linear\.weight", name) for name in names):
        return "Medusa heads"
    layer = {name.removeprefix("layers.0.") for name in names if name.startswith("layers.0.")}
    if "self_attn.q_proj.weight" not in layer or "hidden_norm.weight" in layer:
        return None
    ends = {"norm.weight", "lm_head.weight"} & set(names)
    if "fc.weight" in names and not ends and "input_layernorm.weight" not in layer:
        return "a head of EAGLE-1 or EAGLE-2"
    if "fc.weight" not in names and "embed_tokens.weight" in names and ends and "input_layernorm.weight" in layer:
        return "a whole model, which may be a target (target.checkpoint)"
    return None


def spelled(wanted: Collection[str], stored: Mapping[str, str]) -> dict[str, str]:
    """Public names -> those of a file whose tensors are `stored` (public -> its own), or those that it would have.

    What it lacks is called as its other tensors are: by their prefix and their word for a layer.
    """
    outside: Counter[str] = Counter()
    layers: Counter[str] = Counter()
    for public, name in stored.items():
        i, rest = _placed(public)
        before = name.removesuffix(rest)
        if before == name or not (before == "" or before.endswith(".")):
            continue  # another word altogether
        if i is None:
            outside[before] += 1
        else:
            layers[re.sub(rf"\b{i}\.$", "{i}.", before)] += 1
    first = next(iter(outside), "") if len(outside) == 1 else ""
    layer = layers.most_common(1)[0][0] if layers else "layers.{i}."
    found = {}
    for public in wanted:
        i, rest = _placed(public)
        pairs = i is not None and f"layers.{i}.input_layernorm.weight" in wanted
        if i is not None and not pairs and "midlayer" not in layer:
            rest = rest.replace("hidden_norm.", "input_layernorm.")  # the one norm of an ordinary layer
        found[public] = stored.get(public) or (first if i is None else layer.replace("{i}", i)) + rest
    return found


def _placed(public: str) -> tuple[str | None, str]:
    """The number of the layer that a tensor is in, if in one, and its name there."""
    if not public.startswith("layers."):
        return None, public
    _, i, rest = public.split(".", 2)
    return i, rest
