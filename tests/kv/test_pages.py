import pytest

from eagle3.kv.pages import Pages


def test_page_zero_is_never_handed_out() -> None:
    pages, owned = Pages(total=4, page=16), []
    assert pages.grow(owned, 64)
    assert sorted(owned) == [1, 2, 3, 4]
    assert pages.free == 0


@pytest.mark.parametrize(("entries", "want"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_needed_rounds_up(entries: int, want: int) -> None:
    assert Pages(total=9, page=16).needed(entries) == want


def test_grow_takes_all_or_nothing() -> None:
    pages = Pages(total=3, page=4)
    a: list[int] = []
    b: list[int] = []
    assert pages.grow(a, 8)
    assert not pages.grow(b, 8)
    assert (b, pages.free) == ([], 1)
    assert pages.grow(a, 5), "already owned"
    assert len(a) == 2


def test_released_pages_are_the_pages_taken() -> None:
    pages, owned = Pages(total=5, page=1), []
    pages.grow(owned, 5)
    pages.release(owned)
    assert owned == []
    assert pages.free == 5
    pages.grow(owned, 5)
    assert sorted(owned) == [1, 2, 3, 4, 5]
