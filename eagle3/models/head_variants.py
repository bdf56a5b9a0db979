"""What a head computes beyond the plain one, as its config.json, its tensors and the user say; or who is to say it."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypedDict

from eagle3.config.schema import DraftConfig
from eagle3.errors import UnsupportedError
from eagle3.models.head_config import LAYER, NO_AUX, is_speculators


class Variants(TypedDict):
    """Fields of HeadFacts."""

    fc: bool
    norm_before_fc: bool
    fc_norm: bool
    eh_proj: bool
    norm_before_residual: bool
    normed_twice: bool
    qk_norm: bool
    norm_output: bool


def variants(
    config: Mapping[str, Any], flat: Mapping[str, Any], tensors: Collection[str], cfg: DraftConfig, file: Path
) -> Variants:
    """From `flat`, the fields of `config` on one level, and the public names of all tensors.

    Raises UnsupportedError where they contradict each other, or leave open what readers take differently.
    """
    query_norm = any(re.fullmatch(r"layers\.\d+\.self_attn\.[qk]_norm\.weight", name) for name in tensors)
    found: Variants = {
        "fc": flat.get(NO_AUX) is not False,
        "norm_before_fc": bool(flat.get("norm_before_fc")),
        "fc_norm": bool(flat.get("fc_norm")),
        "eh_proj": bool(flat.get("eh_proj_before_attn")),
        "norm_before_residual": bool(flat.get("norm_before_residual")),
        "normed_twice": cfg.normed_twice,
        "qk_norm": query_norm or flat.get("use_qk_norm") is True or (LAYER in config and flat["model_type"] == "qwen3"),
        "norm_output": _feeds_back(flat, cfg.norm_output_feeds_back, file),
    }
    if is_speculators(config) and "norm_before_residual" not in flat:
        raise UnsupportedError(
            f"{file} does not say norm_before_residual, which readers of speculators' heads take for true or for false:"
            " write into it which of them the head was trained with"
        )
    told = [name for name, on in found.items() if on]
    for one, other in (
        ("norm_before_fc", "fc_norm"),
        ("normed_twice", "norm_before_residual"),
        ("normed_twice", "eh_proj"),
    ):
        if one in told and other in told:
            raise UnsupportedError(f"{file}: {one} and {other} exclude each other")
    for norm in ("norm_before_fc", "fc_norm"):
        if norm in told and not found["fc"]:
            raise UnsupportedError(f"{file}: {norm} and {NO_AUX}=false exclude each other, as there is no fc")
    return found


def _feeds_back(flat: Mapping[str, Any], means_feedback: bool, file: Path) -> bool:
    """Whether the normed output is fed back. `norm_output` alone has two meanings."""
    normed, also = flat.get("norm_output"), flat.get("return_hidden_post_norm")
    if not means_feedback:
        if normed is False:
            raise UnsupportedError(
                f"{file}: norm_output=false, as draft.norm_output_feeds_back=false reads it, is a head without a norm"
                " before its output head, which is not supported"
            )
        return bool(also)
    if None not in (normed, also) and normed != also:
        raise UnsupportedError(f"{file}: norm_output={normed} and return_hidden_post_norm={also} contradict each other")
    return bool(normed or also)
