"""The head, from a checkpoint or from nothing, ready to draft for a target."""

from pathlib import Path

import torch

from eagle3.build.target import Progress, torch_dtype
from eagle3.config.schema import DraftConfig, Embedding, SpecConfig
from eagle3.config.shape import DraftShape
from eagle3.engine.scheduler import Limits
from eagle3.errors import ConfigError, Problem, UnsupportedError
from eagle3.models.decoder import Decoder
from eagle3.models.eagle import EagleHead
from eagle3.models.head_facts import Lender
from eagle3.models.heads import HeadReport, dummy_head, load_head


def build_head(
    draft: DraftConfig,
    folder: Path | None,
    spec: SpecConfig,
    target: Decoder,
    limits: Limits,
    shape: DraftShape,
    progress: Progress | None = None,
) -> tuple[EagleHead, HeadReport]:
    """The head of a configuration that drafts, and how it came to be; `folder` None: of random weights.

    Errors as in `load_head`.
    """
    device, positions = target.embed.weight.device, shape.entries(limits.max_seq_len)
    lender = Lender.of(target)
    if folder is None:
        if draft.architecture is None:
            raise UnsupportedError("draft.load_format=dummy wants the shapes in draft.architecture")
        head, report = dummy_head(
            draft.architecture,
            lender,
            spec.layers_to_capture,
            max_positions=positions,
            max_seq_len=limits.max_seq_len,
            device=device,
            dtype=torch_dtype(draft.dtype, None, device),
            own_embedding=draft.embedding is Embedding.own,
            normed_twice=draft.normed_twice,
        )
        return head.requires_grad_(False), report
    head, report = load_head(
        folder,
        lender,
        draft,
        spec.layers_to_capture,
        max_positions=positions,
        max_seq_len=limits.max_seq_len,
        device=device,
        dtype=head_dtype(draft, device),
        progress=progress,
    )
    if shape.top_k > head.draft_vocab:
        message = f"must be at most {head.draft_vocab}, the head's vocabulary"
        raise ConfigError([Problem("spec.dynamic_tree_max_topK", message, shape.top_k, str(folder))])
    return head.requires_grad_(False), report


def head_dtype(draft: DraftConfig, device: torch.device) -> torch.dtype | None:
    """`auto`: float32 on a CPU; on a GPU as the head's file has it (None)."""
    if draft.dtype.value == "auto" and device.type != "cpu":
        return None
    return torch_dtype(draft.dtype, None, device)
