"""Which pages of a pool are free, and which belong to whom."""

from collections import deque


class Pages:
    """Hands out page ids 1 … total; page 0 is the dummy and never leaves."""

    def __init__(self, total: int, page: int) -> None:
        self.total = total
        self.page = page
        self._free = deque(range(1, total + 1))

    @property
    def free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    def needed(self, entries: int) -> int:
        """Pages that hold so many entries."""
        return -(-entries // self.page)

    def grow(self, owned: list[int], entries: int) -> bool:
        """Extend `owned` in place until it holds `entries`; False, and nothing taken, if too few are free."""
        missing = self.needed(entries) - len(owned)
        if missing > self.free:
            return False
        owned.extend(self._free.popleft() for _ in range(missing))
        return True

    def release(self, owned: list[int]) -> None:
        """Take back all of `owned`, which is left empty."""
        self._free.extend(owned)
        owned.clear()
