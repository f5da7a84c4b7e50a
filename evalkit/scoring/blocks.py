"""Blocks of samples: as much as is encoded, packed and scored together, so that memory doesn't grow with the data.

Where a block ends is decided by the content digests themselves, not by counting: a sample that is added or changed
moves the boundaries around it and no others. All other blocks keep their rows, and with them their place in the result
cache.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ItemT = TypeVar("ItemT")

# Few small blocks, since each one ends with rows that aren't full; then about one digest in so many ends one.
_MIN_ITEMS = 512
_ONE_IN = 1024
_MAX_ITEMS = 4096
_MAX_CHARACTERS = 8 << 20


def content_blocks(
    items: Iterable[ItemT], digest: Callable[[ItemT], str], characters: Callable[[ItemT], int]
) -> Iterator[list[ItemT]]:
    """Cut items into blocks.

    Args:
        items: sorted by digest.
        digest: SHA-256 of an item's content, in hex.
        characters: the size of an item.
    """
    block: list[ItemT] = []
    size = 0
    for item in items:
        block.append(item)
        size += characters(item)
        full = len(block) >= _MAX_ITEMS or size >= _MAX_CHARACTERS
        # The last digits: the first ones grow along the sorted items.
        if full or (len(block) >= _MIN_ITEMS and int(digest(item)[-8:], 16) % _ONE_IN == 0):
            yield block
            block, size = [], 0
    if block:
        yield block
