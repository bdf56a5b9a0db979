import pytest

from eagle3.config import request
from eagle3.config.load import compose
from eagle3.config.request import RequestSampling, request_sampling
from eagle3.config.schema import EngineConfig
from eagle3.errors import ConfigError


@pytest.fixture(scope="module")
def cfg() -> EngineConfig:
    return compose(["conf=tiny", "sampling.seed=5"]).config


def test_requests_that_differ_by_seed_alone_are_checked_once(
    cfg: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[object] = []

    def check(cfg: object, values: object) -> object:
        checked.append(values)
        return request_sampling(cfg, values)

    monkeypatch.setattr(request, "request_sampling", check)
    ask = RequestSampling(cfg)
    asked = [{"seed": 1, "temperature": 0.5}, {"temperature": 0.5, "seed": 2}, {"temperature": 0.5}, {"temperature": 1}]
    got = [ask(values) for values in asked]
    assert got == [request_sampling(cfg, values) for values in asked]
    assert [(s.seed, s.temperature) for s in got] == [(1, 0.5), (2, 0.5), (5, 0.5), (5, 1.0)]
    assert checked == [{"temperature": 0.5}, {"temperature": 1}]
    assert ask({}) == cfg.sampling


@pytest.mark.parametrize("values", [{"seed": -1}, {"seed": 2**63}, {"seed": "x"}, {"seed": True}, {"top_p": 2.0}])
def test_faults_are_told_each_time(cfg: EngineConfig, values: dict[str, object]) -> None:
    ask = RequestSampling(cfg)
    for _ in range(2):
        with pytest.raises(ConfigError) as ours:
            ask(values)
        with pytest.raises(ConfigError) as theirs:
            request_sampling(cfg, values)
        assert str(ours.value) == str(theirs.value)


def test_what_is_remembered_is_bounded(cfg: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "KNOWN", 2)
    ask = RequestSampling(cfg)
    assert [ask({"top_k": k}).top_k for k in (1, 2, 3, 1)] == [1, 2, 3, 1]
    assert len(ask._known) == 2
