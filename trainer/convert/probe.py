"""Rows of text on which the export of a converted model is compared with its weights."""

import numpy as np

from evalkit.tokenization import TextTokenizer
from trainer.checkpoint import Probe
from trainer.data.documents import Document
from trainer.data.packing import batch_of, cut, pack

# Prose, dialogue, figures, code and Chinese, so that many token ids and both short and long pieces take part.
_TEXTS = (
    "Once upon a time there was a small town by the sea. Every morning the baker opened her shop before the sun "
    "came up, and the smell of fresh bread went down the street to the harbour.",
    "The committee met on Tuesday to discuss the budget. Costs had risen by 12.5 percent since 2019, mostly because "
    "of energy prices, and nobody expected them to fall soon.",
    "“Where is my card?” asked Tom. “It was on the table a minute ago.” His sister laughed and held it up.",
    "def area(width, height):\n    if width < 0:\n        raise ValueError(width)\n    return width * height\n",
    "昨天下午我去银行开了一个新账户，工作人员很耐心地回答了所有问题。",
    "Water boils at 100 degrees at sea level; on a high mountain it takes longer to cook an egg.",
    "Thank you for your message. We will reply within three working days.",
)
_ROW_LENGTH = 64


def conversion_probe(tokenizer: TextTokenizer, max_length: int) -> Probe:
    """The texts above in rows of up to 64 positions, packed as scoring packs them."""
    prefix = [] if tokenizer.prefix_token is None else [tokenizer.prefix_token]
    documents = []
    for number, text in enumerate(_TEXTS):
        ids = np.array([*prefix, *tokenizer.encode(text).ids], dtype=np.int32)
        documents.append(Document(f"probe{number}", ids, np.ones(len(ids), dtype=np.bool_)))
    length = min(_ROW_LENGTH, max_length)
    rows = list(pack(cut(documents, length), length, packing=True))
    batch = batch_of(rows, length, len(rows))
    return Probe(batch.token_ids, batch.targets, batch.positions, batch.segments)
