"""d2t, the map of a head's own token ids: target id = draft id + d2t[draft id]."""

import hashlib

import torch
from torch import Tensor

from eagle3.errors import WeightError


def check_d2t(d2t: Tensor | None, t2d: Tensor | None, vocab: int, draft_vocab: int, where: str) -> bool:
    """Whether there is a map that is not the identity; WeightError for one that cannot be right.

    d2t [Vd] holds offsets, t2d [V] marks the tokens that the head can guess; `where` names the files.
    """
    if t2d is not None and (t2d.shape != (vocab,) or t2d.is_floating_point()):
        raise WeightError(f"{where}: t2d must be [{vocab}] booleans, not {list(t2d.shape)} {t2d.dtype}")
    if d2t is None:
        if draft_vocab < vocab:
            raise WeightError(
                f"{where}: the head guesses {draft_vocab} of {vocab} tokens, but no d2t says which; ship d2t"
                f" [{draft_vocab}] of offsets (target id - draft id), or an lm_head of all {vocab} tokens"
            )
        return False
    if d2t.shape != (draft_vocab,) or d2t.is_floating_point() or d2t.dtype == torch.bool:
        raise WeightError(f"{where}: d2t must be [{draft_vocab}] integers, not {list(d2t.shape)} {d2t.dtype}")
    d2t = d2t.long()
    zero = not bool(d2t.any())
    if zero and draft_vocab < vocab:
        raise WeightError(
            f"{where}: d2t is all zero though the head guesses only {draft_vocab} of {vocab} tokens; it was"
            " probably never filled"
        )
    if fault := _fault(torch.arange(draft_vocab) + d2t, t2d, vocab):
        if _fault(d2t, t2d, vocab) is None:
            raise WeightError(
                f"{where}: d2t looks absolute: as offsets {fault}, as target ids all is well; subtract"
                f" arange({draft_vocab})"
            )
        raise WeightError(f"{where}: d2t is not a map of tokens: {fault}")
    return not zero


def _fault(ids: Tensor, t2d: Tensor | None, vocab: int) -> str | None:
    """Why these target ids [Vd] cannot be those of a head."""
    outside = (ids < 0) | (ids >= vocab)
    if bool(outside.any()):
        first = int(outside.int().argmax())
        return f"draft id {first} becomes {int(ids[first])}, outside 0…{vocab - 1}"
    uses = torch.bincount(ids, minlength=vocab)
    if int(uses.max()) > 1:
        return f"target id {int(uses.argmax())} comes {int(uses.max())} times"
    if t2d is not None and not torch.equal(uses, t2d.long()):
        return f"t2d disagrees at target id {int((uses != t2d.long()).int().argmax())}"
    return None


def spread_d2t(vocab: int, draft_vocab: int) -> Tensor:
    """A map [Vd] for a head without weights: draft ids spread evenly over the V target ids."""
    ids = torch.arange(draft_vocab)
    return ids * vocab // draft_vocab - ids


def describe_d2t(d2t: Tensor | None, vocab: int) -> tuple[str, str | None]:
    """How much of the vocabulary a map covers, in words, and its hash, by which two heads can be compared."""
    if d2t is None:
        return "identity map (full vocabulary)", None
    values = d2t.cpu().long().numpy().astype("<i8").tobytes()
    share = 100 * len(d2t) / vocab
    return f"{len(d2t)} of {vocab} tokens ({share:.1f} %)", hashlib.sha256(values).hexdigest()[:16]
