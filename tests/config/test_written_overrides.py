"""Values that become overrides come back as they were."""

from eagle3.config.load import compose
from eagle3.config.overrides import written

NAMES = [
    "self:20",
    "a'b",
    'q"q',
    "x,y",
    "${z}",
    "back\\slash\\",
    r"\${a}",
    r"\\'x",
    "{}",
    "[1]",
    "a=b",
    " sp ",
    "null",
    "7",
    "$",
]


def test_texts_are_taken_as_they_are() -> None:
    texts = [text for name in NAMES for text in (name, "x")]
    assert compose([written("data.sets", texts)]).config.data.sets == texts


def test_numbers_and_switches() -> None:
    values = {"temperatures": [0.0, 1e-05, 2.5], "eval_share": 0.125, "seed": 2**62, "chat": False, "hold_out": []}
    data = compose([written(f"data.{key}", value) for key, value in values.items()]).config.data
    assert {key: getattr(data, key) for key in values} == values
