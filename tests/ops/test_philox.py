import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle3.ops.philox import Stream, coin, noise, philox, uniform, uniforms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([v]) for v in values)


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        pytest.param((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8), id="all-zeros"),
        pytest.param(
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
            id="all-ones",
        ),
        pytest.param(
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
            id="digits-of-pi",
        ),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], want: tuple[int, ...]) -> None:
    k0, k1 = words(*key)
    assert tuple(int(w) for w in philox((k0, k1), words(*counter))) == want


def test_layout_of_key_and_counter() -> None:
    seed, index = (0x299F31D0 << 32) + 0xA4093822, 7
    got = noise(torch.tensor([seed]), torch.tensor([index]), Stream.COIN, 10)[0]
    k0, k1 = words(0xA4093822, 0x299F31D0)
    lanes = [philox((k0, k1), words(c, index, 0, Stream.COIN)) for c in range(3)]
    want = torch.stack([uniform(lanes[i // 4][i % 4])[0] for i in range(10)])
    assert torch.equal(got, want)


def test_ends_of_the_unit_interval_are_out_and_values_exact() -> None:
    ends = uniform(torch.tensor([0, 0xFFFFFFFF]))
    assert ends.dtype == torch.float32
    assert ends.tolist() == [2.0**-24, 1 - 2.0**-24]


def test_every_coordinate_counts_and_nothing_else() -> None:
    seed = torch.tensor([1, 2, 1, 1, -1])
    index = torch.tensor([5, 5, 6, 5 + (1 << 32), 5])
    rows = noise(seed, index, Stream.TARGET, 64)
    assert len({tuple(row.tolist()) for row in rows}) == 5
    assert not torch.equal(rows, noise(seed, index, Stream.DRAFT, 64))
    for i in range(5):
        assert torch.equal(noise(seed[i : i + 1], index[i : i + 1], Stream.TARGET, 37)[0], rows[i, :37])
    assert torch.equal(coin(seed, index, Stream.TARGET), rows[:, 0])


def test_uniform_and_uncorrelated() -> None:
    rows = noise(torch.arange(400), torch.full((400,), 3), Stream.TARGET, 256).double()
    flat = rows.flatten()
    counts = torch.histc(flat, bins=64, min=0, max=1)
    chi2 = ((counts - flat.numel() / 64) ** 2 / (flat.numel() / 64)).sum().item()
    assert 30 < chi2 < 110  # 63 degrees of freedom
    for a, b in [(rows[:-1], rows[1:]), (rows[:, :-1], rows[:, 1:])]:
        assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].item()) < 0.015


@triton.jit(do_not_specialize=["stream"])
def _noise_kernel(out, seed, index, stream, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    row = tl.program_id(0)
    group = tl.arange(0, BLOCK) + 3
    value = uniforms(tl.load(seed + row), tl.load(index + row), stream, group)
    tl.store(out + row * BLOCK * 4 + tl.arange(0, BLOCK)[:, None] * 4 + tl.arange(0, 4)[None, :], value)


@pytest.mark.parametrize("stream", [Stream.TARGET, Stream.DRAFT, Stream.RESIDUAL])
def test_triton_equals_torch(stream: Stream) -> None:
    seed = torch.tensor([0, 1, -1, -(2**63), 2**63 - 1, (1 << 40) + 7], device=DEVICE)
    index = torch.tensor([0, 5, (1 << 33) + 1, 2**31, 2**32 - 1, 77], device=DEVICE)
    out: Tensor = torch.full((6, 64), torch.nan, device=DEVICE)
    _noise_kernel[(6,)](out, seed, index, stream, BLOCK=16)
    assert torch.equal(out, noise(seed, index, stream, 76)[:, 12:])
