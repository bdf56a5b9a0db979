"""What a benchmark runs, and what its record says of how the numbers came to be."""

import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest

from eagle3.bench import run
from eagle3.bench.run import Pass, measure
from eagle3.bench.workload import Workload, given, made_up
from eagle3.cli import main
from eagle3.config.shape import DraftShape
from eagle3.engine.engine import Engine
from helpers.cycle_files import write_cycle
from helpers.pairs import LAYERS, engine, random_pair

Records = dict[str, dict[str, Any]]
CHAIN = DraftShape(depth=3, top_k=1, nodes=4)


def test_each_arm_warms_up_unscored_and_then_runs_the_same_prompts_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    target, head = random_pair(8)
    arms = {"plain": engine(target), "spec": engine(target, (head, LAYERS), CHAIN)}
    names, done = {id(e): name for name, e in arms.items()}, list[tuple[str, list[list[int]], Pass]]()
    one_pass = run.one_pass

    def watched(served: Engine, prompts: Sequence[Sequence[int]], output_len: int) -> Pass:
        found = one_pass(served, prompts, output_len)
        done.append((names[id(served)], [list(p) for p in prompts], found))
        return found

    monkeypatch.setattr(run, "one_pass", watched)
    work = made_up(4, length=5, vocab=8)
    plain, spec = measure(arms, work, batch=2, output_len=6, repeats=2, tell=lambda _: None)
    assert [name for name, _, _ in done] == ["plain", "spec"] * 3
    first, second = [list(p) for p in work.prompts[:2]], [list(p) for p in work.prompts[2:]]
    assert [prompts for _, prompts, _ in done] == [first, first, first, first, second, second]
    for cell, scored in ((plain, done[2::2]), (spec, done[3::2])):
        assert [id(p) for p in cell.passes] == [id(p) for _, _, p in scored], "the unscored pass is not among them"
        assert all(p.output_tokens == 12 for p in cell.passes)
    assert spec.acceptance is not None
    assert spec.acceptance.num_spec_steps == sum(sum(p.histogram) for p in spec.passes)


def test_ctrl_c_leaves_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    target, head = random_pair(8)
    arms = {"plain": engine(target), "spec": engine(target, (head, LAYERS), CHAIN)}
    passes = iter([Pass(1.0, 1, 2, 1.0, [1.0], [1.0], [2, 0, 0, 0])] * 3)

    def one_pass(*_: object) -> Pass:
        try:
            return next(passes)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(run, "one_pass", one_pass)
    work = made_up(4, length=5, vocab=8)
    with pytest.raises(KeyboardInterrupt) as stop:
        measure(arms, work, batch=2, output_len=6, repeats=2, tell=lambda _: None)
    assert isinstance(stop.value, run.CutShort)
    assert [(cell.arm, len(cell.passes)) for cell in stop.value.cells] == [("plain", 1)]


def test_equal_prompts_are_known_by_their_hash() -> None:
    work = given([[1, 2], [3]])
    assert work.sha256 == given([(1, 2), (3,)], chat=True).sha256
    assert len({work.sha256, given([[1, 2, 3]]).sha256, given([[3], [1, 2]]).sha256, Workload((), True).sha256}) == 4


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """What the command tells of one pair, asked in several ways."""
    folder = tmp_path_factory.mktemp("pair")
    ids, text = folder / "ids.jsonl", folder / "text.jsonl"
    ids.write_text('{"prompt_ids": [3]}\n{"prompt_ids": [5, 6]}\n')
    text.write_text('{"prompt": "hi"}\n')
    small = ["bench.prompt_len=4", "bench.output_len=8", "bench.repeats=1", f"hydra.run.dir={folder / 'out'}"]
    pair = [*write_cycle(folder, tokenizer=True), "runtime.device=cpu", "spec=chain", "spec.max_draft_len=3", *small]
    ways = {
        "random": ["bench.batch_sizes=[1,2]", "bench.ignore_eos=true"],
        "real": ["--prompt-file", str(ids), "bench.ignore_eos=false", "spec.use_rejection_sampling=true"],
        "forced": ["--prompt-file", str(ids), "spec.synthetic_acceptance=2"],
        "text": ["--prompt-file", str(text)],
    }
    told = {}
    for name, words in ways.items():
        with redirect_stdout(StringIO()) as out:
            assert main(["benchmark", *pair, *words, "--json"]) == 0
        told[name] = json.loads(out.getvalue())
    return told


def test_made_up_prompts_and_forced_acceptance_are_not_valid(records: Records) -> None:
    random, real, forced = (records[name] for name in ("random", "real", "forced"))
    valid = [[r["validity"]["acceptance_valid"], r["cells"][1]["spec"]["acceptance_valid"]] for r in
             (random, real, forced)]  # fmt: skip
    assert valid == [[False] * 2, [True] * 2, [False] * 2]
    assert [r["prompts"]["source"] for r in (random, real, forced)] == ["random ids", "given", "given"]
    assert real["prompts"]["count"] == 2
    assert real["prompts"]["sha256"] == forced["prompts"]["sha256"] != random["prompts"]["sha256"]


def test_the_record_says_whether_answers_may_end_and_how_chains_are_verified(records: Records) -> None:
    told = [(r["validity"]["ignore_eos"], r["validity"]["rejection_sampling"]) for r in records.values()]
    assert told[:2] == [(True, False), (False, True)]


def test_the_record_says_whether_a_template_was_used(records: Records) -> None:
    assert records["text"]["prompts"]["chat_template"] is True
    assert records["real"]["prompts"]["chat_template"] is False


def test_the_record_names_both_arms_their_shapes_and_the_numbers(records: Records) -> None:
    found = records["random"]
    assert [(c["batch"], c["arm"]) for c in found["cells"]] == [(1, "plain"), (1, "spec"), (2, "plain"), (2, "spec")]
    plain, spec = found["cells"][2:]
    assert plain["shape"] == {"depth": 0, "top_k": 1, "nodes": 1}
    assert spec["shape"] == {"depth": 3, "top_k": 1, "nodes": 4}
    assert plain["spec"] is plain["speedup"] is None
    assert spec["speedup"]["output_throughput"] == spec["output_throughput"][1] / plain["output_throughput"][1]
    numbers = {f"{how}_{what}_ms" for how in ("mean", "median", "p95", "p99") for what in ("ttft", "tpot")}
    assert all(cell.keys() >= numbers for cell in found["cells"])
    assert spec["spec"]["mean_acceptance_length"] is not None
    assert spec["spec"]["num_draft_tokens"] == 3 * spec["spec"]["num_spec_steps"]
    assert {"torch", "eagle3", "device"} <= found["hardware"].keys()
    assert found["prompts"]["prompt_len"] == 4
