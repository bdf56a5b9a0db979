"""The names of a head's tensors: one public name for all that trainers and exporters call them."""

import re
from collections import Counter, defaultdict
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

    What it lacks is called as its other tensors are: by their prefix and their word for its layer, or for a layer.
    No two get the same name.
    """
    outside: Counter[str] = Counter()
    words: dict[str, Counter[str]] = defaultdict(Counter)  # by layer
    for public, name in stored.items():
        i, rest = _placed(public)
        before = name.removesuffix(rest)
        if before == name or not (before == "" or before.endswith(".")) or rest == "lm_head.weight":
            continue  # another word altogether; an output head may stand outside of what holds the rest
        (outside if i is None else words[i])[before] += 1
    prefix = outside.most_common(1)[0][0] if outside else ""
    usual = {i: found.most_common(1)[0][0] for i, found in words.items()}
    numbered = [word.removesuffix(f"{i}.") for i, word in usual.items() if word.endswith(f".{i}.")]
    found, taken = {}, set(stored.values())
    for public in wanted:
        i, rest = _placed(public)
        word = prefix if i is None else usual.get(i, f"{numbered[0] if numbered else prefix + 'layers.'}{i}.")
        pairs = i is not None and f"layers.{i}.input_layernorm.weight" in wanted
        if i is not None and not pairs and "midlayer" not in word:
            rest = rest.replace("hidden_norm.", "input_layernorm.")  # the one norm of an ordinary layer
        found[public] = stored.get(public) or (public if word + rest in taken else word + rest)
    return found


def _placed(public: str) -> tuple[str | None, str]:
    """The number of the layer that a tensor is in, if in one, and its name there."""
    match = re.fullmatch(r"layers\.(\d+)\.(.+)", public)
    return (match[1], match[2]) if match else (None, public)
