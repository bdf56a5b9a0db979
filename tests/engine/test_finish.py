import pytest

from eagle3.engine.finish import keep

STOP = 2


@pytest.mark.parametrize(
    ("new", "emitted", "limit", "ends", "kept", "reason"),
    [
        pytest.param([10, 11], 0, 9, {STOP}, [10, 11], None, id="goes-on"),
        pytest.param([10, 11, STOP, 20, 21], 0, 5, {STOP}, [10, 11, STOP], "stop", id="stop-inside-a-run"),
        pytest.param([10, 11, STOP], 0, 2, {STOP}, [10, 11], "length", id="limit-before-stop"),
        pytest.param([10, STOP, 12], 3, 5, {STOP}, [10, STOP], "stop", id="stop-wins-on-the-limit"),
        pytest.param([10, 11, 12], 3, 5, {STOP}, [10, 11], "length", id="limit-inside-a-run"),
        pytest.param([STOP, STOP], 0, 5, set(), [STOP, STOP], None, id="ignore-eos"),
        pytest.param([STOP], 0, 1, {STOP}, [STOP], "stop", id="only-a-stop"),
        pytest.param([], 0, 1, {STOP}, [], None, id="nothing"),
    ],
)
def test_keep(new: list[int], emitted: int, limit: int, ends: set[int], kept: list[int], reason: str) -> None:
    assert keep(new, emitted, limit, ends) == (kept, reason)


def test_one_run_equals_token_by_token() -> None:
    tokens, ends = [5, 6, 7, STOP, 8], {STOP}
    for limit in range(1, 6):
        whole = keep(tokens, 0, limit, ends)
        kept: list[int] = []
        reason = None
        for token in tokens:
            more, reason = keep([token], len(kept), limit, ends)
            kept += more
            if reason:
                break
        assert whole == (kept, reason)
