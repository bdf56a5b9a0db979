"""Which prompts are asked: each once, none that is held out, and each in one split."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from eagle3.errors import ConfigError, Problem
from eagle3.text.prompts import Prompt
from eagle3.train.data_parts import seed_of
from eagle3.train.samples import Split

GRAM = 13  # words in a row that two prompts share by copying, hardly by chance

Gram = tuple[str | int, ...]


@dataclass
class Tally:
    """What became of a source's prompts."""

    given: int = 0
    unusable: int = 0  # blank, or a question of the target's that did not end
    duplicate: int = 0
    held_out: int = 0
    too_long: int = 0
    kept: int = 0


@dataclass
class Chooser:
    """Takes prompts one by one; keeps those that are new and not near the ones held out."""

    held: frozenset[Gram]
    chosen: list[tuple[str, Prompt]] = field(default_factory=list)  # source and prompt
    tallies: dict[str, Tally] = field(default_factory=dict)
    _seen: set[tuple[str | int, ...]] = field(default_factory=set)

    def take(self, source: str, prompt: Prompt) -> bool:
        """Whether it is kept."""
        tally = self.tallies.setdefault(source, Tally())
        tally.given += 1
        prompt = asked(prompt)
        key = folded(prompt)
        if not any(key):
            tally.unusable += 1
        elif key in self._seen:
            tally.duplicate += 1
        elif not self.held.isdisjoint(grams(prompt)):
            tally.held_out += 1
        else:
            self._seen.add(key)
            self.chosen.append((source, prompt))
            tally.kept += 1
            return True
        return False


def asked(prompt: Prompt) -> Prompt:
    """The prompt without answers of others at its end, which the target is to write itself, and outer white space."""
    if prompt.text is not None:
        return Prompt(text=prompt.text.strip())
    if prompt.messages is not None:
        messages = list(prompt.messages)
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        return Prompt(messages=tuple(messages)) if messages else Prompt(text="")
    return Prompt(ids=prompt.ids)


def folded(prompt: Prompt) -> tuple[str | int, ...]:
    """What makes two prompts the same: white space counts as one blank, a text is a user's message."""
    if prompt.ids is not None:
        return ("ids", *prompt.ids)
    if prompt.messages is None:
        return (" ".join((prompt.text or "").split()),)
    turns = [(m["role"], " ".join(m["content"].split())) for m in prompt.messages]
    return (
        (turns[0][1],) if len(turns) == 1 and turns[0][0] == "user" else tuple(part for turn in turns for part in turn)
    )


def grams(prompt: Prompt) -> set[Gram]:
    """All runs of 13 words, case and punctuation apart, or of 13 ids; of a shorter prompt the whole."""
    if prompt.ids is not None:
        words: Sequence[str | int] = prompt.ids
    else:
        texts = [m["content"] for m in prompt.messages] if prompt.messages is not None else [prompt.text or ""]
        words = re.findall(r"\w+", " ".join(texts).casefold())
    return {tuple(words[i : i + GRAM]) for i in range(max(1, len(words) - GRAM + 1))} - {()}


def held_out(prompts: Iterable[Prompt]) -> frozenset[Gram]:
    """The grams that no prompt may share."""
    return frozenset(gram for prompt in prompts for gram in grams(asked(prompt)))


def splits(prompts: Sequence[tuple[int, ...]], eval_share: float, seed: int) -> list[Split]:
    """The split of each prompt (token ids), by its own hash: other prompts beside it do not move it.

    About `eval_share` of them are for evaluation: at least one where any is wanted and two are there, never all.
    """
    at = [seed_of("split", seed, ids) / 2**63 for ids in prompts]
    if eval_share == 0 or not at:
        return ["train"] * len(at)
    first, last = min(at), max(at)
    return ["eval" if place != last and (place < eval_share or place == first) else "train" for place in at]


def without_sampling(name: str, prompts: Sequence[Prompt]) -> None:
    """Refuse prompts that ask for sampling of their own: all are answered at the same temperatures."""
    if own := [i for i, prompt in enumerate(prompts) if prompt.sampling]:
        message = "sampling of their own is not taken here; leave it out, and see data.temperatures (--temperature)"
        raise ConfigError([Problem(name, message, [f"prompt {i}" for i in own[:5]], "the prompt file")])
