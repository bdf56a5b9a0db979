"""Launches every kernel of eagle3.ops on small odd shapes, for a run under compute-sanitizer. No test.

compute-sanitizer --tool memcheck python tests/gpu/sanitize.py    # or --tool racecheck

Run once without the tool before, kernels come from Triton's cache and it is a matter of seconds.
"""

import importlib
import os
import pkgutil
from collections.abc import Callable

import torch

GPU = torch.cuda.is_available()
if not GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported

from eagle3 import ops  # noqa: E402
from eagle3.ops import steady  # noqa: E402
from eagle3.ops.build_tree import build_tree_triton  # noqa: E402
from eagle3.ops.gather import gather_triton  # noqa: E402
from eagle3.ops.grow import Grown, History, grow_triton, start_triton  # noqa: E402
from eagle3.ops.linear import linear_triton  # noqa: E402
from eagle3.ops.loop_rows import loop_rows_triton  # noqa: E402
from eagle3.ops.pair_norm import pair_norm_triton  # noqa: E402
from eagle3.ops.path_rows import path_rows_triton  # noqa: E402
from eagle3.ops.prompt_attention import prompt_attention_triton  # noqa: E402
from eagle3.ops.relocate_kv import relocate_kv_triton  # noqa: E402
from eagle3.ops.rms_norm import rms_norm_triton  # noqa: E402
from eagle3.ops.rope_store import HeadNorms, rope_store_triton  # noqa: E402
from eagle3.ops.sample import sample_triton  # noqa: E402
from eagle3.ops.select import CHUNK, argmax_triton  # noqa: E402
from eagle3.ops.slot_rows import NewTree, SlotRows, read_slots_triton, write_slots_triton  # noqa: E402
from eagle3.ops.streams import Stream, steady_stream  # noqa: E402
from eagle3.ops.swiglu import swiglu_triton  # noqa: E402
from eagle3.ops.topk import draft_topk_triton  # noqa: E402
from eagle3.ops.tree_attention import tree_attention_triton  # noqa: E402
from eagle3.ops.verify_tree import verify_tree_triton  # noqa: E402

DEVICE = torch.device("cuda" if GPU else "cpu")
TYPES = [torch.float16, torch.bfloat16] if GPU else [torch.float16]  # the interpreter's bfloat16 product is wrong
B, K, D, N, PAGE = 3, 4, 4, 34, 4  # requests; a tree of two words of mask bits
VOCAB = CHUNK + 77  # two chunks, the second short


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def i64(*values: int) -> torch.Tensor:
    return torch.tensor(values, device=DEVICE)


def i32(*values: int) -> torch.Tensor:
    return i64(*values).int()


def tables(width: int) -> torch.Tensor:
    """[B, width] i32, a page for each, page 0 for none."""
    return i32(*range(1, B * width + 1)).view(B, width).flip(1).contiguous()


def rows(dtype: torch.dtype) -> None:
    """Kernels of one row a program."""
    ids, width = i64(0, 6, 2, 6, 1), 301
    gather_triton(floats(7, width, dtype=dtype), ids)
    hidden, weight = floats(5, width, dtype=dtype), floats(width, dtype=dtype)
    rms_norm_triton(hidden, weight, 1e-6)
    rms_norm_triton(hidden, weight, 1e-6, hidden)
    pair_norm_triton(ids, floats(7, width, dtype=dtype), hidden, weight, weight, 1e-6)
    swiglu_triton(floats(5, 2 * width, dtype=dtype))
    heads, turn, kv = floats(5, 9, 10, dtype=dtype), floats(5, 5), floats(4, PAGE, 60, dtype=dtype)
    rope_store_triton(heads, turn, turn, kv, i64(15, 0, 3, 4, 9), 3)
    norms = HeadNorms(floats(10, dtype=dtype), floats(10, dtype=dtype), 1e-6)
    rope_store_triton(heads, turn, turn, kv, i64(15, 0, 3, 4, 9), 3, norms)


def products(dtype: torch.dtype) -> None:
    """Whole blocks and none whole, parts of the sum, a gate."""
    for count, outs, depth, stream in (
        (5, 64, 256, Stream(16, 16, 64, 2, 4, 2)),
        (37, 70, 104, Stream(16, 32, 32, 1, 4, 2)),
        (3, 33, 200, Stream(16, 16, 64, 3, 4, 2)),
        (9, 50, 256, steady_stream(floats(1, 1, dtype=dtype), gated=False)),
    ):
        linear_triton(floats(count, depth, dtype=dtype), floats(outs, depth, dtype=dtype), None, stream)
    x, weight, bias = (floats(*shape, dtype=dtype) for shape in ((19, 96), (66, 96), (66,)))
    linear_triton(x, weight, bias, Stream(16, 32, 32, 1, 4, 2), gated=True)


def attention(dtype: torch.dtype) -> None:
    """Ragged prompts, trees and rows without a mask; windows; sums in one, in parts, and cut by position."""
    mask = torch.randint(-(2**31), 2**31 - 1, (B, 5, 2), device=DEVICE).int()
    depth = i32(*range(N)).repeat(B, 1)
    for dim, heads, n_kv, page in ((20, 6, 2, PAGE), (64, 4, 1, 64)):
        width = 128 // page
        kv, table = floats(B * width + 1, page, 2 * n_kv * dim, dtype=dtype), tables(width)
        lens, cu_q = i32(N + 69, 0, N + 3), i32(0, 19, 20, 23)
        q = floats(25, heads, dim, dtype=dtype)  # two rows of nobody
        for window, cut in ((None, None), (9, None), (None, 64)):
            place = kv, cu_q, lens, table, 19, 0.2, window, n_kv
            prompt_attention_triton(q, *place, split_by_position=cut)
        where = kv, lens, table, N, depth
        for window, splits, cut in ((None, None, None), (9, 2, None), (None, None, 64)):
            tree_attention_triton(q[:15], *where, mask, 0.2, window, n_kv, splits=splits, split_by_position=cut)
        tree_attention_triton(q[:15], kv, lens, table, 5, depth[:, :5], None, 0.2, None, n_kv)


def choices(dtype: torch.dtype) -> None:
    """Selection over two chunks of a vocabulary, with and without filters."""
    logits, off = floats(B, VOCAB, dtype=dtype), torch.zeros(B, device=DEVICE)
    argmax_triton(logits)
    draft_topk_triton(logits, K)
    draft_topk_triton(logits, K, torch.arange(VOCAB, device=DEVICE))
    warm, top_p = torch.tensor([[1.0, 0.0, 0.5], [1.0, 0.9, 0.3]], device=DEVICE)
    top_k, seeds = i32(0, 5, VOCAB + 9), i64(1, -5, 1 << 60)
    sample_triton(logits, warm, top_k, top_p, off + 0.01, seeds, i64(0, 3, 1 << 33))
    sample_triton(logits, warm, top_k * 0, off + 1, off, seeds, i64(0, 3, 9), filtered=False)


def grown(length: torch.Tensor, dtype: torch.dtype) -> NewTree:
    """A draft loop's kernels, fed with noise."""
    history, feedback = History.empty(B, K, D, DEVICE), floats(B * K, 37, dtype=dtype)
    loop_rows_triton(length, tables(16), PAGE, K, D)
    made: Grown | None = None
    for step in range(D):
        count = B if made is None else B * K
        scores, ids = draft_topk_triton(floats(count, VOCAB, dtype=dtype), K)
        if made is None:
            made = start_triton(scores, ids, feedback, i64(2, 0, 1), history, 1)
        else:
            mask = None if step == D - 1 else made.mask
            made = grow_triton(scores, ids, made.scores, feedback, mask, history, step)
    return build_tree_triton(i64(4, 5, 6), *history, K, N)


def trees(dtype: torch.dtype) -> None:
    """From one tree to the next: grow, build, keep, place, verify, relocate, follow the path."""
    length, table = i64(9, 0, 16), tables(16)
    tree = grown(length, dtype)
    held, fields = [torch.zeros(B + 1, *t.shape[1:], dtype=t.dtype, device=DEVICE) for t in tree], SlotRows._fields
    flag, none = torch.zeros(B + 1, dtype=torch.bool, device=DEVICE), torch.zeros(B + 1, device=DEVICE)
    rest = [flag, i64(0, 0, 0, 0), none, none.int(), none, none, i64(1, 2, 3, 4)]
    slots = SlotRows(**dict(zip(fields, held + rest, strict=True)))
    ids = i64(2, 3, 0)  # the second is padding
    for links in (False, True):
        write_slots_triton(slots, ids, ids < B, tree, length, True, links)
    state, _ = read_slots_triton(slots, ids, table, PAGE)
    wanted = state.tokens.roll(-1, 1).contiguous()  # the root's is its first child's
    given = state.tokens, state.first_child, state.next_sibling, wanted, state.has_tree
    tokens, counts, path = verify_tree_triton(*given, D)
    kv, far = floats(2, B * 16 + 1, PAGE, 70, dtype=dtype), i64(2, 5, 7, -1, -1, -1, -1, -1, 1, 2, 32, 33)
    for moved in (path, far.view(B, D)):
        relocate_kv_triton(kv, table, state.length, moved)
    path_rows_triton(tokens, counts, path, state.length, ids, B, table, PAGE, floats(B, N, 37, dtype=dtype))


PARTS: tuple[Callable[[torch.dtype], None], ...] = (rows, products, attention, choices, trees)


def launchers() -> set[str]:
    """The names of all functions of eagle3.ops that launch kernels of their own."""
    modules = [importlib.import_module(f"eagle3.ops.{module.name}") for module in pkgutil.iter_modules(ops.__path__)]
    return {name for module in modules for name in vars(module) if name.endswith("_triton")}


def main() -> None:
    torch.manual_seed(0)
    assert launchers() <= set(globals()), f"not launched: {launchers() - set(globals())}"
    assert hasattr(steady, "join_parts")  # by attention that is cut by position
    for dtype in TYPES:
        for part in PARTS:
            part(dtype)
            if GPU:
                torch.cuda.synchronize()  # a fault is told where it is
            print(part.__name__, dtype, flush=True)
    print("done")


if __name__ == "__main__":
    main()
