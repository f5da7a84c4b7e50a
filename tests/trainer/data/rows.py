"""Documents whose every token can be found again."""

import numpy as np

from trainer.data.documents import Document
from trainer.data.packing import Row, cut, pack


def random_documents(seed: int, count: int, longest: int) -> list[Document]:
    """Documents of 2 to `longest` - 1 tokens; an id occurs once."""
    random = np.random.default_rng(seed)
    return [
        Document(
            record_id=f"记录{index}",
            ids=(index * 1000 + np.arange(size)).astype(np.int32),
            loss=np.r_[False, random.random(size - 1) < 0.5],
        )
        for index, size in enumerate(random.integers(2, longest, count))
    ]


def random_rows(count: int = 60, length: int = 32, *, packing: bool = True) -> list[Row]:
    """Rows of such documents."""
    return list(pack(cut(random_documents(length, count, 70), length), length, packing=packing))
