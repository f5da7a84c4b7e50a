"""Blocks: bounded, and an added sample moves only the boundaries around it."""

from hashlib import sha256

import pytest

from evalkit.scoring import blocks
from evalkit.scoring.blocks import content_blocks


def digests(count: int) -> list[str]:
    return sorted(sha256(str(number).encode()).hexdigest() for number in range(count))


def cut(items: list[str], size: int = 1) -> list[list[str]]:
    return list(content_blocks(items, lambda digest: digest, lambda digest: size))


def test_every_item_once_in_order_and_no_block_too_large() -> None:
    items = digests(20_000)
    found = cut(items)
    assert [item for block in found for item in block] == items
    assert all(len(block) >= blocks._MIN_ITEMS for block in found[:-1])
    assert all(len(block) <= blocks._MAX_ITEMS for block in found)
    assert 8 < len(found) < 30
    assert max(len(block) for block in cut(items, size=1 << 20)) == 8
    assert cut([]) == []


@pytest.mark.parametrize("place", [0, 7_000, 19_999])
def test_an_added_item_changes_few_blocks(place: int) -> None:
    items = digests(20_000)
    more = sorted([*items, items[place][:-1] + ("0" if items[place][-1] != "0" else "1")])
    before, after = cut(items), cut(more)
    kept = [block for block in after if block in before]
    assert len(kept) >= len(before) - 3
