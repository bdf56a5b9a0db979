"""Bytes as people write them."""

import re


def size(count: int) -> str:
    """Bytes with a unit."""
    power = min((max(count, 1).bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {' KMGT'[power]}iB" if power else f"{count} B"


def parsed(text: str) -> int:
    """80GiB, 80 GB, 1.5T in bytes; 0 for what is no size, and without a unit."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT])(i?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        return 0
    power = " KMGT".index(match[2].upper())
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
