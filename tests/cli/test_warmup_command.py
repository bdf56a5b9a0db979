"""`eagle3 warmup`: every shape of prompts served, and what is said of it."""

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from eagle3.cli import main
from eagle3.cli.warmup import pass_table
from eagle3.config.shape import DraftShape
from eagle3.engine import warmup
from eagle3.engine.engine import Engine
from eagle3.engine.graphs import GraphRunner
from eagle3.engine.scheduler import Limits, Plan
from eagle3.engine.warmup import NEW, WarmedPass, eager, first_request, prompt_shapes, room, warm
from eagle3.errors import CapacityError
from helpers.pairs import LAYERS, engine, random_pair

SMALL = ["conf=tiny", "runtime.device=cpu", "target.architecture.num_hidden_layers=2", "spec.layers_to_capture=[0,1]"]
SHORT = [
    "runtime.max_seq_len=64",
    "runtime.max_num_tokens=70",
    "runtime.max_batch_size=2",
    "bench.prompt_len=8",
    "bench.output_len=6",
]
TREE = DraftShape(depth=3, top_k=2, nodes=7)
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def small(**sizes: int) -> Engine:
    target, head = random_pair(8)
    return engine(target, (head, LAYERS), TREE, **sizes)


def test_json(capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert main(["warmup", *SMALL, *SHORT, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [g["memory_bytes"] for g in told["graphs"]] == [None]
    assert told["eager"] == ["prompt passes", "all steps"]
    assert told["prompt_graphs"] == []
    assert {(1, 1), (1, 16), (1, 17), (2, 16), (2, 17)} <= {(p["requests"], p["rows"]) for p in told["prompts"]}
    assert {p["draw"] for p in told["prompts"]} == {"greedy", "sampled", "filtered"}
    before, after = told["memory"]["before"], told["memory"]["after"]
    assert {k: v for k, v in before.items() if k != "left"} == {k: v for k, v in after.items() if k != "left"}
    assert before["kv_entries"] * before["kv_bytes_per_token"] < before["kv"]
    first = told["first_request"]
    assert (first["prompt_tokens"], first["output_tokens"]) == (8, 6)
    assert 0 < first["ttft_ms"] < first["total_ms"]
    assert first["ratio"] == pytest.approx(first["total_ms"] / first["later_total_ms"])


def test_tables(capsys: Capture) -> None:
    assert main(["warmup", *SMALL, *SHORT]) == 0
    out = capsys.readouterr().out
    for words in ("KV pools", "before", "after", "first request", "TTFT ms", "eager: prompt passes"):
        assert words in out


def graphed(prompt_rows: list[int]) -> Engine:
    """An engine whose passes are padded as those of graphs are: 64 rows at most."""
    made = small()
    old = made.runner
    made.runner = GraphRunner(old.worker, old.preparer, [1, 4], 2, 40, prompt_rows=prompt_rows, capture=False)
    return made


@pytest.mark.parametrize(
    ("rows", "left"), [([], ["prompt passes"]), ([16], ["prompt passes of more than 16 tokens"]), ([16, 64], [])]
)
def test_what_is_left_eager(rows: list[int], left: list[str]) -> None:
    made = graphed(rows)
    assert eager(made) == ["prompt passes", "all steps"], "nothing is captured"
    made.runner.capture = True  # type: ignore[attr-defined]
    assert eager(made) == left


@pytest.mark.parametrize(("rows", "largest"), [([], 64), ([16], 64), ([16, 64], 1)])
def test_prompts_that_graphs_cover_are_not_served(
    rows: list[int], largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = graphed(rows)
    covered = [WarmedPass(n, 4, True, 0.1, 0.2, 2**20, 3.0) for n in rows]
    monkeypatch.setattr(warmup, "_passes", lambda *_: covered)
    done = warm(made)
    assert done.passes == covered
    served = [p.rows for p in done.prompts]
    assert served[0] == 1, "the loop itself"
    assert all(n > max(rows, default=0) for n in served[1:])
    assert min(max(served), 64) == largest


def test_graphs_of_prompts_are_told(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    row = WarmedPass(512, 8, False, 0.1, 0.2, 3 * 2**20, 4.5)
    cells = [list(column.cells) for column in pass_table([row]).columns]
    assert cells == [["512"], ["8"], ["none"], ["0.10"], ["0.20"], ["3.0"], ["4.500"]]
    monkeypatch.setattr(warmup, "warm", lambda engine, _: replace(warm(engine), passes=[row], eager=[]))
    assert main(["warmup", *SMALL, *SHORT, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["prompt_graphs"] == [asdict(row)]
    assert main(["warmup", *SMALL, *SHORT]) == 0
    assert "eager: nothing" in capsys.readouterr().out


def test_shapes() -> None:
    shapes = prompt_shapes(Limits(16, 4096, 2048, 2048), 4000)
    lengths = [s for s, draw in shapes if draw == "greedy"]
    assert {(1,), (16,), (17,), (2048,), (1, 1), (2,) * 16} <= set(lengths)
    assert (2065,) in lengths, "a prompt of two chunks"
    assert len(set(shapes)) == len(shapes)
    assert {draw for _, draw in shapes} == {"greedy", "sampled", "filtered"}


def test_shapes_fit() -> None:
    shapes = prompt_shapes(Limits(3, 64, 100, 40), 60)
    assert max(max(s) for s, _ in shapes) <= 60
    assert max(len(s) for s, _ in shapes) == 3
    assert (40, 40, 40) in [s for s, _ in shapes], "as full a pass as there can be"
    assert prompt_shapes(Limits(1, 2, 1, 1), 1) == [((1,), draw) for draw in ("greedy", "sampled", "filtered")]


def test_the_longest_prompt_fits_and_no_longer_one() -> None:
    for tight in (small(tokens=44), small(max_seq_len=20)):
        longest = room(tight)
        asked = [{"max_new_tokens": NEW}]
        assert tight.generate([[1] * longest], asked)[0].error is None
    assert small(max_seq_len=20).generate([[1] * 20], asked)[0].error is not None


def test_an_engine_too_small_to_warm_says_so() -> None:
    with pytest.raises(CapacityError, match=r"no request of 3 tokens fits: raise runtime\.max_seq_len"):
        warm(small(max_seq_len=2))


def test_warming_leaves_an_idle_engine() -> None:
    served = small(batch=2, max_seq_len=40)
    free = [pool.free for pool in served.scheduler.pools]
    warm(served)
    first = first_request(served)
    assert first.prompt_tokens + first.output_tokens <= 40
    assert served.idle
    assert [pool.free for pool in served.scheduler.pools] == free


def test_warming_runs_the_real_step() -> None:
    served = small(batch=2, max_seq_len=40)
    run, rows = served.runner.run, list[int]()

    def watched(plan: Plan) -> object:
        rows.append(sum(c.end - c.start for c in plan.chunks))
        return run(plan)

    served.runner.run = watched  # type: ignore[method-assign, assignment]
    done = warm(served)
    assert sum(rows) == sum(p.rows for p in done.prompts)
    total = served.stats()
    assert total is not None
    assert total.num_spec_steps >= sum(p.requests for p in done.prompts)
