"""The engine's own interface, on a tiny target in float64."""

import pytest

from eagle3.engine.engine import Engine
from eagle3.errors import CapacityError, ConfigError, Eagle3Error
from helpers.pairs import engine, facts, random_target

TARGET = random_target(facts(64))
PROMPTS = [[1, 2, 3], [5] * 17, [9, 8, 7, 6, 5], [60]]


def answers(served: Engine, **sampling: object) -> list[list[int]]:
    return [r.token_ids for r in served.generate(PROMPTS, [sampling] * len(PROMPTS))]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "top_p": 0.9, "seed": 7}], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "around", [{"page": 1, "chunk": 3}, {"page": 16, "batch": 2}, {"tokens": 64, "max_seq_len": 40}]
)
def test_an_answer_does_not_depend_on_what_else_runs(sampling: dict[str, object], around: dict[str, int]) -> None:
    sampling = {**sampling, "max_new_tokens": 12}
    alone = [engine(TARGET).generate([p], [sampling])[0].token_ids for p in PROMPTS]
    together = engine(TARGET, **around)
    assert answers(together, **sampling) == alone
    assert all(pool.free == pool.total for pool in together.scheduler.pools)


def test_seeds_tell_equal_prompts_apart_and_repeat() -> None:
    first = engine(TARGET).generate([[1, 2]] * 2, [{"temperature": 1.0}] * 2)
    again = engine(TARGET).generate([[1, 2]] * 2, [{"temperature": 1.0}] * 2)
    assert first[0].token_ids != first[1].token_ids
    assert [r.token_ids for r in first] == [r.token_ids for r in again]
    assert [r.seed for r in first] == [0, 1]


def test_greedy_beside_sampled_stays_greedy() -> None:
    greedy = engine(TARGET).generate([PROMPTS[0]])[0].token_ids
    mixed = engine(TARGET).generate([PROMPTS[0], PROMPTS[1]], [{}, {"temperature": 1.3, "min_p": 0.01}])
    assert mixed[0].token_ids == greedy


def test_a_stop_token_ends_and_is_kept() -> None:
    free = engine(TARGET).generate([PROMPTS[0]], [{"max_new_tokens": 9}])[0]
    stop = free.token_ids[4]
    cut = engine(TARGET).generate([PROMPTS[0]], [{"max_new_tokens": 9, "stop_token_ids": [stop]}])[0]
    assert cut.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert (free.finish_reason, cut.finish_reason) == ("length", "stop")


def test_ignore_eos_goes_past_the_models_end_tokens() -> None:
    end = engine(TARGET).generate([PROMPTS[0]])[0].token_ids[2]
    ends = frozenset({end})
    assert engine(TARGET, ends=ends).generate([PROMPTS[0]])[0].finish_reason == "stop"
    ignoring = engine(TARGET, ends=ends).generate([PROMPTS[0]], [{"ignore_eos": True, "max_new_tokens": 9}])[0]
    assert (len(ignoring.token_ids), ignoring.finish_reason) == (9, "length")


def test_generation_ends_where_max_seq_len_does() -> None:
    result = engine(TARGET, max_seq_len=16).generate([[3] * 10], [{"max_new_tokens": 99}])[0]
    assert (len(result.token_ids), result.finish_reason) == (6, "length")


def test_what_never_fits_is_refused_alone() -> None:
    served = engine(TARGET, max_seq_len=16)
    long, short = served.generate([[3] * 16, [1, 2]], [{"max_new_tokens": 3}] * 2)
    assert long.finish_reason == "error"
    assert "runtime.max_seq_len=16" in str(long.error)
    assert len(short.token_ids) == 3
    with pytest.raises(CapacityError):
        served.add([3] * 16)


def test_bad_requests_are_told_with_every_fault_and_change_nothing() -> None:
    served = engine(TARGET)
    with pytest.raises(ConfigError) as error:
        served.add([1], temperature=-1, top_p=2.0, max_new_token=3)
    assert [p.key for p in error.value.problems] == ["max_new_token"], "unknown names come before ranges"
    with pytest.raises(ConfigError) as error:
        served.add([1], temperature=-1, top_p=2.0)
    assert {p.key for p in error.value.problems} == {"temperature", "top_p"}
    for prompt in ([], [64], [-1]):
        with pytest.raises(ConfigError, match="prompt"):
            served.add(prompt)
    with pytest.raises(ConfigError, match="logit_bias"):
        served.add([1], logit_bias={1: 2.0})
    with pytest.raises(Eagle3Error, match="no tokenizer"):
        served.add("text")
    assert served.idle


def test_requests_come_and_go_while_others_run() -> None:
    served = engine(TARGET, batch=2)
    want = {str(i): r.token_ids for i, r in enumerate(engine(TARGET).generate(PROMPTS, [{"max_new_tokens": 8}] * 4))}
    got: dict[str, list[int]] = {}
    for i, prompt in enumerate(PROMPTS):
        assert served.add(prompt, max_new_tokens=8) == str(i)
        for event in served.step():
            got.setdefault(event.request_id, []).extend(event.token_ids)
    while not served.idle:
        for event in served.step():
            got.setdefault(event.request_id, []).extend(event.token_ids)
    assert got == want


def test_abort_returns_what_there_is_and_frees_everything() -> None:
    served = engine(TARGET)
    served.add([1, 2, 3], request_id="mine", max_new_tokens=50)
    served.add([4, 5], max_new_tokens=5)
    for _ in range(4):
        served.step()
    result = served.abort("mine")
    assert result.finish_reason == "abort"
    assert result.token_ids == engine(TARGET).generate([[1, 2, 3]])[0].token_ids[: len(result.token_ids)]
    while not served.idle:
        served.step()
    assert all(pool.free == pool.total for pool in served.scheduler.pools)
    with pytest.raises(Eagle3Error, match="mine"):
        served.abort("mine")


def test_leaving_a_stream_aborts_the_rest() -> None:
    served = engine(TARGET)
    for _ in served.stream(PROMPTS):
        break
    assert served.idle
    assert all(pool.free == pool.total for pool in served.scheduler.pools)


def test_stream_wants_an_idle_engine() -> None:
    served = engine(TARGET)
    served.add([1])
    with pytest.raises(Eagle3Error, match="idle"):
        next(served.stream([[2]]))


def test_metrics_are_numbers_or_null() -> None:
    one, many = engine(TARGET).generate([[1], [2]], [{"max_new_tokens": 1}, {"max_new_tokens": 5}])
    assert one.metrics is not None
    assert many.metrics is not None
    assert (one.metrics.num_output_tokens, one.metrics.tpot_ms) == (1, None)
    assert many.metrics.tpot_ms is not None
    assert many.metrics.ttft_ms is not None
    assert many.metrics.e2el_ms == pytest.approx(many.metrics.ttft_ms + 4 * many.metrics.tpot_ms)


def test_an_engine_is_idle_once_all_is_aborted() -> None:
    served = engine(TARGET)
    served.add([1, 2, 3])
    served.step()
    assert [r.finish_reason for r in served.abort_all()] == ["abort"]
    assert served.idle
    assert answers(served, max_new_tokens=4) == answers(engine(TARGET), max_new_tokens=4)


def test_a_bad_prompt_among_good_ones_leaves_the_engine_as_it_was() -> None:
    served = engine(TARGET)
    with pytest.raises(ConfigError):
        served.generate([[1, 2], []])
    assert served.idle
    assert answers(served, max_new_tokens=4) == answers(engine(TARGET), max_new_tokens=4)


def test_leaving_a_stream_lets_the_requests_of_others_be() -> None:
    served = engine(TARGET)
    mine = served.stream([[1]])
    next(mine)
    served.add([1, 2, 3], request_id="other", max_new_tokens=3)
    mine.close()
    events = []
    while not served.idle:
        events += served.step()
    (result,) = [e.result for e in events if e.result]
    assert (result.request_id, len(result.token_ids)) == ("other", 3)


def test_after_a_step_that_failed_what_is_left_must_be_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    served = engine(TARGET)
    want = answers(served, max_new_tokens=4)

    def broken(plan: object) -> None:
        raise RuntimeError("out of memory")

    served.add([1, 2, 3])
    with monkeypatch.context() as patch:
        patch.setattr(served.runner, "run", broken)
        with pytest.raises(RuntimeError):
            served.step()
    with pytest.raises(Eagle3Error, match="abort"):
        served.step()
    served.abort_all()
    assert answers(served, max_new_tokens=4) == want


def test_ids_given_and_made_do_not_meet() -> None:
    served = engine(TARGET)
    assert [served.add([1], request_id="1"), served.add([2]), served.add([3])] == ["1", "2", "3"]


def test_the_largest_seed_is_a_seed_for_many_prompts() -> None:
    served = engine(TARGET)
    served.config.sampling.seed = 2**63 - 1
    assert [r.seed for r in served.generate([[1], [2]])] == [2**63 - 1, 0]


def test_after_an_interrupt_the_engine_can_be_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    served = engine(TARGET)
    step, left = served.step, iter(range(3))

    def interrupted() -> object:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step()

    with monkeypatch.context() as patched:
        patched.setattr(served, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            served.generate(PROMPTS)
    with pytest.raises(Eagle3Error, match=r"abort_all\(\)"):
        served.generate(PROMPTS)
    assert len(served.abort_all()) == len(PROMPTS)
    assert served.idle
    assert answers(served, max_new_tokens=5) == answers(engine(TARGET), max_new_tokens=5)
