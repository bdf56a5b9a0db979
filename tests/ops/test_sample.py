import math

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eagle3.ops.filters import filter_logits
from eagle3.ops.philox import Stream
from eagle3.ops.sample import sample, sample_torch, sample_triton
from eagle3.ops.select import CHUNK

DRAWS = 100_000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def params(
    rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> dict[str, Tensor]:
    return {
        "temperature": torch.full((rows,), temperature),
        "top_k": torch.full((rows,), top_k, dtype=torch.int32),
        "top_p": torch.full((rows,), top_p),
        "min_p": torch.full((rows,), min_p),
    }


def warped(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    ids = torch.zeros(logits.shape[0], 1, dtype=torch.int64)
    out = TemperatureLogitsWarper(temperature)(ids, logits)
    if top_k:
        out = TopKLogitsWarper(top_k)(ids, out)
    if top_p < 1:
        out = TopPLogitsWarper(top_p)(ids, out)
    if min_p:
        out = MinPLogitsWarper(min_p)(ids, out)
    return out


@pytest.mark.parametrize("temperature", [0.5, 1.75])
@pytest.mark.parametrize("top_k", [0, 5, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.875, 2.0**-20])
@pytest.mark.parametrize("min_p", [0.0, 0.0625, 1.0])
def test_filters_equal_transformers(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(8, 301, dtype=torch.float64) * 3
    got = filter_logits(logits, **params(8, temperature, top_k, top_p, min_p))
    want = warped(logits, temperature, top_k, top_p, min_p)
    assert got.dtype == torch.float64
    assert torch.equal(got.isinf(), want.isinf())
    assert torch.equal(got, want)


def test_parameters_are_each_rows_own() -> None:
    torch.manual_seed(1)
    logits = torch.randn(5, 64)
    rows = [
        (1.0, 0, 1.0, 0.0),
        (0.5, 3, 1.0, 0.0),
        (2.0, 0, 0.5, 0.0),
        (1.0, 0, 1.0, 0.25),
        (0.75, 9, 0.75, 0.125),
    ]
    t, k, p, m = (torch.tensor(c) for c in zip(*rows, strict=True))
    got = filter_logits(logits, t, k.int(), p, m)
    for i, row in enumerate(rows):
        assert torch.equal(got[i], filter_logits(logits[i : i + 1], **params(1, *row))[0])
    assert [(~r.isinf()).sum().item() for r in got[:2]] == [64, 3]


@pytest.mark.parametrize(
    ("setting", "kept"),
    [
        pytest.param({"top_k": 2}, [0, 1, 2], id="top-k-keeps-all-that-tie-with-the-kth"),
        pytest.param({"top_p": 0.5}, [0, 1, 2], id="top-p-keeps-equals-together"),
        pytest.param({"top_p": 0.01}, [0], id="the-most-probable-stays"),
        pytest.param({"min_p": 1.0}, [0], id="min-p-one"),
        pytest.param({"temperature": 0.0}, [0], id="greedy-keeps-its-argmax"),
        pytest.param({}, [0, 1, 2, 3], id="all-off"),
    ],
)
def test_what_is_kept(setting: dict[str, float], kept: list[int]) -> None:
    logits = torch.tensor([[0.4, 0.25, 0.25, 0.1]]).log()
    got = filter_logits(logits, **params(1, **setting))  # type: ignore[arg-type]
    assert (~got[0].isinf()).nonzero().flatten().tolist() == kept


def counted(logits: list[float], setting: tuple[float, int, float, float]) -> Tensor:
    """How often each token comes in DRAWS draws; a seed gives four places of its sequence."""
    rows, draw = torch.tensor(logits).expand(DRAWS, -1), torch.arange(DRAWS)
    drawn = sample(rows, **params(DRAWS, *setting), seed=draw // 4, index=draw % 4)
    return torch.bincount(drawn, minlength=len(logits)).double()


def pvalue(counts: Tensor, law: Tensor) -> float:
    """How well the counts fit the law; 0 where a token without probability came."""
    possible = law > 0
    if counts[~possible].sum() > 0:
        return 0.0
    return float(chisquare(counts[possible].numpy(), (law[possible] * DRAWS).numpy()).pvalue)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.75, 0.0), (0, 1.0, 0.25), (4, 0.875, 0.0625)],
    ids=["plain", "top-k", "top-p", "min-p", "all"],
)
def test_law_of_draws(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = [1.2, -0.3, 0.4, 0.9, -1.5, 0.1]
    setting = (temperature, top_k, top_p, min_p)
    truth = warped(torch.tensor([logits], dtype=torch.float64), *setting).softmax(-1)[0]
    wrong = warped(torch.tensor([logits], dtype=torch.float64), temperature * 1.1, *setting[1:]).softmax(-1)[0]
    counts = counted(logits, setting)
    assert pvalue(counts, truth) > 1e-3
    assert pvalue(counts, wrong) < 1e-6


def test_law_of_draws_is_missed_by_another_filter_order() -> None:
    logits = [2.0, 1.0, 0.5, 0.0]
    before = warped(torch.tensor([logits], dtype=torch.float64), 1.0, 0, 0.75, 0.0)
    tempered_last = (before / 2.0).softmax(-1)[0]
    setting = (2.0, 0, 0.75, 0.0)
    truth = warped(torch.tensor([logits], dtype=torch.float64), *setting).softmax(-1)[0]
    counts = counted(logits, setting)
    assert pvalue(counts, truth) > 1e-3
    assert pvalue(counts, tempered_last) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_do_not_depend_on_their_batch(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    rows, size = 12, 999
    logits = (torch.randn(rows, size) * 2).to(dtype)
    setting = {
        "temperature": torch.rand(rows) * (torch.arange(rows) % 3 > 0),  # a third is greedy
        "top_k": torch.randint(0, 50, (rows,)).int(),
        "top_p": torch.rand(rows),
        "min_p": torch.rand(rows) / 10,
        "seed": torch.randint(-(2**63), 2**63 - 1, (rows,)),
        "index": torch.randint(0, 5000, (rows,)),
    }
    together = sample(logits, **setting)
    alone = [sample(logits[i : i + 1], **{k: v[i : i + 1] for k, v in setting.items()}).item() for i in range(rows)]
    assert together.tolist() == alone
    order = torch.randperm(rows)
    assert torch.equal(sample(logits[order], **{k: v[order] for k, v in setting.items()}), together[order])
    assert torch.equal(together[::3], logits[::3].float().argmax(-1))


def test_what_the_host_knows_changes_no_token() -> None:
    torch.manual_seed(3)
    logits, where = torch.randn(40, 50), {"seed": torch.arange(40), "index": torch.arange(40)}
    off, cold = params(40, 0.7), params(40, 0.0, top_k=3)
    assert torch.equal(sample(logits, **off, **where), sample(logits, **off, **where, filtered=False))
    assert torch.equal(sample(logits, **cold, **where), sample(logits, **cold, **where, greedy=True))
    assert not torch.equal(sample(logits, **off, **where), sample(logits, **off, **where, stream=Stream.DRAFT))


def test_ties_go_to_the_lowest_id_and_nan_is_never_drawn() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [math.nan, -9.0, math.nan, -9.0], [math.nan] * 4])
    where = {"seed": torch.arange(3), "index": torch.arange(3)}
    assert sample(logits, **params(3, 0.0), **where).tolist() == [1, 1, 0]
    many = logits[1].expand(200, -1)
    drawn = sample(many, **params(200, 1.0, 3, 0.9, 0.1), seed=torch.arange(200), index=torch.zeros(200).long())
    assert set(drawn.tolist()) == {1, 3}
    assert (
        sample(logits[2:], **params(1, 1.0, 3, 0.5, 0.1), seed=torch.tensor([4]), index=torch.tensor([4])).item() == 0
    )


def mixed(rows: int) -> dict[str, Tensor]:
    """Every combination of filters on and off, a cold row now and then."""
    at = torch.arange(rows)
    out = {
        "temperature": torch.where(at % 7 == 3, 0.0, 0.5 + at / rows),
        "top_k": torch.where(at % 2 > 0, 1 + 3 * at, 0).int(),
        "top_p": torch.where(at // 2 % 2 > 0, 0.3 + 0.6 * at / rows, 1.0),
        "min_p": torch.where(at // 4 % 2 > 0, 0.05, 0.0),
        "seed": at * 7919 - 5,
        "index": at + 3,
    }
    return {name: value.to(DEVICE) for name, value in out.items()}


@pytest.mark.parametrize(
    ("dtype", "filtered", "rows"),
    [(torch.float32, False, 8), (torch.float32, True, 3), (torch.bfloat16, True, 8)],
)
def test_triton_equals_torch(dtype: torch.dtype, filtered: bool, rows: int) -> None:
    torch.manual_seed(4)
    size = CHUNK + 300
    logits = (torch.randn(rows, size + 1, device=DEVICE) * 4).to(dtype)[:, :size]
    setting = mixed(rows)
    got = sample_triton(logits, **setting, filtered=filtered)
    assert torch.equal(got, sample_torch(logits, **setting, filtered=filtered))


def test_triton_rows_do_not_depend_on_their_batch() -> None:
    logits, setting = torch.randn(6, 90, device=DEVICE).half(), mixed(6)
    alone = {name: value[5:] for name, value in setting.items()}
    assert torch.equal(sample_triton(logits[5:], **alone), sample_triton(logits, **setting)[5:])


def test_triton_takes_one_rows_parameters_for_many() -> None:
    logits, one = torch.randn(5, 90, device=DEVICE).half(), {name: value[3:4] for name, value in mixed(6).items()}
    spread = {name: value.expand(5) for name, value in one.items()}  # stride 0
    each = torch.cat([sample_triton(row[None], **one) for row in logits])
    assert torch.equal(sample_triton(logits, **spread), each)


SETTINGS = [(1, 1.0, 0.0), (0, 0.97, 0.0), (0, 0.0, 0.0), (0, 1.0, 0.9), (20, 0.6, 0.0), (5, 0.9, 0.9)]


def test_triton_cuts_where_torch_does() -> None:
    # of many seeds those that tell: the least probable token that stays wins, the most probable that is cut would
    torch.manual_seed(5)
    size, draws = 100, 6000
    row = (torch.randn(size) * 2).half()
    row[8], row[9] = math.nan, -math.inf
    row[20:23] = row[20]  # three that tie
    many, where = row.expand(draws, -1), {"seed": torch.arange(draws), "index": torch.zeros(draws).long()}
    free = sample_torch(many, **params(draws, 8.0), **where)
    seeds, rows, hits = [], [], 0
    for setting in SETTINGS:
        kept = ~filter_logits(row[None], **params(1, 8.0, *setting))[0].isinf()
        sound = row.nan_to_num(-math.inf)
        least = torch.where(kept, sound, math.inf).argmin()
        first = torch.where(kept, -math.inf, sound).argmax()
        found = [int(s[0]) for s in (torch.where(free == t)[0] for t in (least, first)) if len(s)]
        hits += len(found)
        seeds += found
        rows += [params(1, 8.0, *setting)] * len(found)
    assert hits == 2 * len(SETTINGS)
    given = {k: torch.cat([r[k] for r in rows]).to(DEVICE) for k in rows[0]}
    at = {"seed": torch.tensor(seeds, device=DEVICE), "index": torch.zeros(hits, device=DEVICE).long()}
    logits = row.to(DEVICE).expand(hits, -1).contiguous()
    want = sample_torch(logits, **given, **at)
    assert torch.equal(sample_triton(logits, **given, **at), want)
    stays = (want.cpu() == free[seeds]).view(-1, 2)
    assert bool(stays[:, 0].all())
    assert not stays[:, 1].any()


@pytest.mark.filterwarnings("ignore:invalid value")
def test_triton_spares_no_odd_row() -> None:
    odd = torch.randn(6, 40, device=DEVICE).half()
    odd[0] = math.nan
    odd[1] = -math.inf
    odd[2, 5:9] = math.inf
    odd[3, ::2] = math.nan
    odd[4] = 0.0
    odd[5, 1:] = -math.inf
    settings = [(2.0, 50, 0.9, 0.1), (0.0, 1, 0.1, 0.1)]
    sets = [params(6, *setting) for setting in settings]
    given = {k: torch.cat([one[k] for one in sets]).to(DEVICE) for k in sets[0]}
    where = {"seed": torch.arange(12, device=DEVICE), "index": torch.arange(12, device=DEVICE)}
    logits = odd.repeat(2, 1)
    assert torch.equal(sample_triton(logits, **given, **where), sample_torch(logits, **given, **where))


def test_triton_keeps_equals_together_where_only_the_temperature_makes_them_so() -> None:
    # float32 neighbours that become one value when divided: the second of them is the k-th
    base = torch.tensor([1.9375, 1.9375 + 2**-23, 0.5, 0.25], device=DEVICE)
    warm = torch.tensor(1.7, device=DEVICE)
    assert (base / warm)[0] == (base / warm)[1]
    many = base.expand(20, -1)
    given = {k: v.to(DEVICE) for k, v in params(20, 1.7, top_k=1).items()}
    where = {"seed": torch.arange(20, device=DEVICE), "index": torch.zeros(20, device=DEVICE).long()}
    want = sample_torch(many, **given, **where).tolist()
    rows = [want.index(token) for token in (0, 1)]  # a row for each: the interpreter is slow
    got = sample_triton(many[rows].contiguous(), **{k: v[rows] for k, v in (given | where).items()})
    assert got.tolist() == [0, 1]
    assert set(want) == {0, 1}
