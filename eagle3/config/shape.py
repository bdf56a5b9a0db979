"""Sizes that everything is built from: the shape of a tree of guesses, and which layers are captured."""

from dataclasses import dataclass

from eagle3.config.schema import DecodingType, SpecConfig


@dataclass(frozen=True)
class DraftShape:
    """How far and how wide a step guesses. A chain is a tree with K = 1; plain decoding is D 0, K 1, N 1."""

    depth: int  # D, draft steps
    top_k: int  # K, children kept a draft step
    nodes: int  # N, rows the target verifies a request, the root included

    @classmethod
    def resolve(cls, spec: SpecConfig) -> "DraftShape":
        """The shape of a `SpecConfig` that has passed its rules; K = 1 where no tree is asked for."""
        if spec.decoding_type is DecodingType.none:
            return cls(depth=0, top_k=1, nodes=1)
        assert spec.max_draft_len is not None
        top_k = (spec.dynamic_tree_max_topK or 1) if spec.use_dynamic_tree else 1
        total = spec.max_total_draft_tokens if top_k > 1 else None
        return cls(spec.max_draft_len, top_k, nodes=1 + (total or top_k * spec.max_draft_len))

    @property
    def path(self) -> int:
        """P = D + 1: the most tokens a step can emit."""
        return self.depth + 1

    @property
    def draft_words(self) -> int:
        """32-bit words in a mask row over the K(D-1) entries that a draft loop adds."""
        return max(1, -(-self.loop // 32))

    @property
    def history(self) -> int:
        """K + K²(D-1): all candidates that a tree is chosen from."""
        return self.top_k + self.top_k**2 * max(self.depth - 1, 0)

    @property
    def loop(self) -> int:
        """K(D-1): entries that a draft loop writes past the committed length."""
        return self.top_k * max(self.depth - 1, 0)

    @property
    def reserve(self) -> int:
        """R = max(N, P + K(D-1)): entries that a step may write past a request's committed length."""
        return max(self.nodes, self.path + self.loop)

    def entries(self, known: int) -> int:
        """Entries that a request of `known` tokens may need: one step is unseen, and the next one writes R more."""
        return known + self.path + self.reserve

    def pages(self, known: int, page: int) -> int:
        """Pages that hold these entries: M, where `known` is a request's longest."""
        return -(-self.entries(known) // page)

    def capture_rows(self, max_num_tokens: int, max_batch_size: int, max_seq_len: int) -> int:
        """Rows that hold the features of any forward: the prompt chunks of a step, or N rows a generation."""
        return min(max_num_tokens, max_batch_size * max_seq_len) + self.nodes * max_batch_size


def default_capture(layers: int) -> tuple[int, ...]:
    """TensorRT-LLM's choice for L layers, as outputs: 1, L//2 - 1, L - 4 (or the only layer)."""
    return (0,) if layers == 1 else (1, layers // 2 - 1, layers - 4)
