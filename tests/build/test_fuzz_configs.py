"""Configurations drawn at random: refused with a clear error, or an engine that says what plain decoding says."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, partial
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.override_parser.types import OverrideType
from omegaconf import DictConfig, OmegaConf

from eagle3.build import pools, preflight, target
from eagle3.build.engine import build_arms, build_engine
from eagle3.cli.report import print_error
from eagle3.config.compose import FAULTS, Composed, _attempt, _judge, compose
from eagle3.config.origins import Origins, from_overrides
from eagle3.config.overrides import admit, forced, parse, picks_file
from eagle3.config.schema import DType
from eagle3.config.session import loader_of, session
from eagle3.config.support import BUILT
from eagle3.config.typed import is_known
from eagle3.engine.engine import Engine, Result
from eagle3.errors import ConfigError, Eagle3Error
from eagle3.models import heads
from eagle3.models.weights import dummy_weights
from eagle3.spec import worker
from helpers.changed import changed
from helpers.drawn import NONE, TINY, drawn, mapping
from helpers.trace import assert_at_rest

PART, MEMORY = 150, 1 << 30
SECTIONS = ("target", "draft", "spec", "kv", "runtime", "sampling", "data", "train")
# of 150, how many there are of a kind at least
LEAST = {1: ["bench", "batch_invariant", "synthetic", *(f"pages of {2**i}" for i in range(8))]}
LEAST |= {2: [*SECTIONS, "unknown key", "not built", "context limit", "rejection", "windows"]}
LEAST |= {4: ["joint", "penalised", "logprobs"], 8: ["plain", "chain", "tree", "greedy", "sampled", "accepted"]}
LEAST |= {30: ["refused", "built", "compared"]}


@pytest.fixture(autouse=True)
def _weights_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention has a say in what such models say; and memory is small everywhere."""
    for module in (target, heads):
        monkeypatch.setattr(module, "dummy_weights", partial(dummy_weights, std=0.5))
    for module in (preflight, pools):
        monkeypatch.setattr(module, "all_bytes", lambda _: MEMORY)
        monkeypatch.setattr(module, "free_bytes", lambda _: MEMORY)


@cache
def shipped() -> tuple[Hydra, ConfigLoaderImpl]:
    """Hydra takes its time to find files and groups."""
    with session() as hydra:
        return hydra, loader_of(hydra)


@cache
def composed_base(groups: tuple[str, ...]) -> DictConfig:
    """What is there before values are set."""
    hydra, loader = shipped()
    tiny = [forced(loader, override, everywhere=True) for override in parse([*TINY])[0]]
    tree = _attempt(hydra, "config", [*tiny, *groups])
    OmegaConf.set_struct(tree, False)
    del tree["hydra"]
    return tree


def composed(groups: list[str], values: list[str], whole: bool) -> Composed:
    """As a command does (`whole`), or in the same way over what was composed before."""
    everything = [*TINY, *groups, *values]
    loader = shipped()[1]
    parsed, problems = parse([*groups, *values])
    kept, more = admit(loader, parsed, sweep=False)
    chosen = [override for override in kept if picks_file(loader, override)]
    own = [override for override in kept if override not in chosen]
    tree = deepcopy(composed_base(tuple(str(override.input_line) for override in chosen)))
    if whole:
        return compose(everything)
    for override in own:
        try:
            if not override.is_delete():
                override.type = OverrideType.FORCE_ADD
            ConfigLoaderImpl._apply_overrides_to_config([override], tree)
        except FAULTS:  # told by trying each alone, so there is little beside it
            return compose(["conf=tiny", str(override.input_line)])
    return _judge(tree, lambda: Origins(tuple(from_overrides(own))), problems + more, everything, BUILT)


def check_error(error: ConfigError, given: list[str]) -> None:
    """Every problem names a key that there is, or one that was given, and says something."""
    assert error.problems
    names = {text.split("=")[0].lstrip("+~") for text in given}
    for problem in error.problems:
        assert is_known(problem.key) or problem.key in names or problem.message.startswith("unknown key")
        assert problem.message
        assert len(str(problem)) < 1500
        if problem.key in names - {text.split("=")[0] for text in TINY}:
            assert problem.origin, f"{problem.key} was given by somebody"


def kinds(error: ConfigError) -> Iterator[str]:
    yield "refused"
    for problem in error.problems:
        yield problem.key.split(".")[0]
        for words in ("unknown key", "not built"):
            if words in problem.message:
                yield words


def features(made: Composed) -> Iterator[str]:
    cfg, shape = made.config, made.shape
    sampling = cfg.sampling
    yield "built"
    yield "plain" if shape.depth == 0 else "tree" if shape.top_k > 1 else "chain"
    yield "sampled" if sampling.temperature else "greedy"
    yield f"pages of {cfg.kv.tokens_per_block}"
    facts = cfg.target.architecture
    asked = {
        "batch_invariant": cfg.runtime.batch_invariant,
        "context limit": shape.depth and cfg.draft.context_limit.value != "extend",
        "joint": shape.depth and cfg.kv.draft_pool.value == "joint",
        "penalised": (sampling.presence_penalty, sampling.frequency_penalty) != (0, 0),
        "logprobs": sampling.logprobs is not None,
        "rejection": cfg.spec.use_rejection_sampling,
        "synthetic": cfg.spec.synthetic_acceptance is not None,
        "windows": facts is not None and facts.sliding_window is not None,
    }
    yield from (name for name, there in asked.items() if there)


def served(engine: Engine, wanted: list[tuple[list[int], dict[str, Any]]]) -> list[Result] | str:
    """Results, or the fault that all of them share."""
    try:
        results = engine.generate(*map(list, zip(*wanted, strict=True)))
    except ConfigError as error:
        results = str(error)
    assert_at_rest(engine)
    return results


def said(result: Result) -> tuple[object, ...]:
    return result.token_ids, result.finish_reason, result.error is None


def serve(made: Composed, rng: random.Random) -> Iterator[str]:
    """Two to four requests: with drafting as without, alone as together. Yields what came up."""
    arms = build_arms(made)
    engine, cfg = arms.get("spec", arms["plain"]), made.config
    wanted: list[tuple[list[int], dict[str, Any]]] = [
        ([rng.randrange(engine.vocab) for _ in range(rng.choice((1, 2, 9)))], {"seed": rng.randrange(99)})
        for _ in range(rng.choice((2, 2, 2, 3, 4)))
    ]
    wanted[0][1]["temperature"] = rng.choice((0.0, 1.0))
    found = served(engine, wanted)
    if engine is arms["plain"]:
        alone = [served(engine, [one]) for one in wanted]
        plain = alone[0] if isinstance(found, str) else [r for (r,) in alone]  # type: ignore[misc]
    else:
        plain = served(arms["plain"], wanted)
        stats = engine.stats()
        if stats is not None and sum(stats.acceptance_histogram[1:]):
            yield "accepted"
    if isinstance(found, str) or isinstance(plain, str):
        assert found == plain
        return
    exact = cfg.target.dtype is DType.float64 and cfg.spec.synthetic_acceptance is None
    for own, wants in zip(found, plain, strict=True):
        drawn_drafts = cfg.spec.use_rejection_sampling and own.sampling is not None and not own.sampling.greedy
        if exact and not drawn_drafts:
            assert said(own) == said(wants), f"request {own.request_id} says otherwise"
            yield "compared"
        assert own.error is not None or 0 < len(own.token_ids) <= cfg.sampling.max_new_tokens


def one(case: int) -> set[str]:
    """Judge, build and serve a configuration; what it was."""
    groups, values = drawn(case)
    try:
        try:
            made = composed(groups, values, whole=case % 50 == 0)
        except ConfigError as error:
            check_error(error, [*TINY, *groups, *values])
            print_error(error)
            return set(kinds(error))
        try:
            return {*features(made), *serve(made, random.Random(case))}
        except Eagle3Error as error:
            print_error(error)
            return {"not to be had", *(kinds(error) if isinstance(error, ConfigError) else ())}
    except (Exception, AssertionError) as fault:
        line = " ".join(f"'{text}'" for text in [*TINY, *groups, *values])
        pytest.fail(f"case {case}: {type(fault).__name__} {str(fault)[:300].splitlines()[:1]}: eagle3 generate {line}")


def many(cases: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for case in cases:
        seen.update(one(case))
    return seen


@pytest.mark.parametrize("part", range(2))
def test_300_configurations(part: int, capfd: pytest.CaptureFixture[str]) -> None:
    seen = many(range(part * PART, (part + 1) * PART))
    short = [(name, seen[name]) for least, names in LEAST.items() for name in names if seen[name] < least]
    assert not short, f"too few of a kind: {short}"
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(2, 20))
def test_3000_configurations(part: int) -> None:
    many(range(part * PART, (part + 1) * PART))


@pytest.mark.parametrize("key", ["runtime__max_seq_len", "runtime__max_batch_size", "runtime__max_num_tokens"])
def test_sizes_beyond_all_memory(key: str) -> None:
    """Nothing is made of what cannot be; rows of a prompt are kept for no more than there can be."""
    made = changed((*TINY, *(f"{name}={mapping(value)}" for name, value in NONE.items())), **{key: 1 << 30})
    if key == "runtime__max_num_tokens":
        assert build_engine(made).generate([[1]])
        return
    with pytest.raises(ConfigError, match=rf"{key.replace('__', '.')}: .* GiB: lower it"):
        build_engine(made)


def no_relocation(patcher: pytest.MonkeyPatch) -> None:
    patcher.setattr(worker, "relocate_kv", lambda *_: None)


def depth_forgotten(patcher: pytest.MonkeyPatch) -> None:
    sound = worker.tree_rows

    def flat(state: Any, *args: Any) -> Any:
        ids, positions, meta = sound(state, *args)
        nodes = state.tree.tokens.shape[1]
        return ids, positions.view(-1, nodes)[:, :1].expand(-1, nodes).flatten(), meta

    patcher.setattr(worker, "tree_rows", flat)


@pytest.mark.parametrize(("fault", "case"), [(no_relocation, 152), (depth_forgotten, 30)])
def test_a_broken_step_is_seen(
    fault: Callable[[pytest.MonkeyPatch], None], case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "compared" in one(case)
    fault(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match=rf"case {case}: .* says otherwise.*: eagle3 generate 'conf=tiny' "):
        one(case)
