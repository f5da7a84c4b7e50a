"""Raw logits of texts, on request: what the model gave at each scored token, before any softmax."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evalkit.backends.base import Float32Array, IntArray
from evalkit.backends.raw_logits import RawLogits
from evalkit.errors import InputError
from evalkit.scenario.schema import Window as WindowPolicy
from evalkit.scoring.rows import Piece, build_batches, row_length_for
from evalkit.scoring.texts import TextItem, unscorable
from evalkit.scoring.windows import plan_windows
from evalkit.tokenization import TextTokenizer

# Of the float32 numbers, before compression. Whole corpora belong into tokens.parquet.
MAX_LOGITS_BYTES = 2 << 30

_BLOCK_TEXTS = 1024


@dataclass(frozen=True, eq=False)
class LogitRows:
    """Raw logits of the scored tokens of one text.

    Attributes:
        sample_id: the text.
        index: of the predicted token in the text, shape (scored,); token_id: its id.
        logits: float32, shape (scored, vocabulary); row i is the prediction for token index[i].
    """

    sample_id: str
    index: npt.NDArray[np.int64]
    token_id: IntArray
    logits: Float32Array


def check_logits_size(
    items: Sequence[TextItem], tokenizer: TextTokenizer, policy: WindowPolicy, vocab_size: int
) -> None:
    """Refuse texts whose raw logits would be larger than `MAX_LOGITS_BYTES`.

    Raises:
        InputError: they would.
    """
    tokens = 0
    for start in range(0, len(items), _BLOCK_TEXTS):
        texts = [item.text for item in items[start : start + _BLOCK_TEXTS] if not unscorable(item.text)]
        for encoded in tokenizer.encode_batch(texts):
            parts = plan_windows(len(encoded.ids), policy, has_prefix=tokenizer.prefix_token is not None)
            tokens += sum(window.scored for window in parts)
    size, most = tokens * vocab_size * 4, MAX_LOGITS_BYTES // (vocab_size * 4)
    if size > MAX_LOGITS_BYTES:
        raise InputError(
            f"--logits: {tokens} tokens with {vocab_size} float32 logits each are {size / 2**30:.1f} GiB, at most "
            f"{MAX_LOGITS_BYTES / 2**30:g} GiB are kept; give texts of at most {most} tokens together, or use --tokens"
        )


def text_logits(
    items: Sequence[TextItem],
    tokenizer: TextTokenizer,
    run: RawLogits,
    policy: WindowPolicy,
) -> Iterator[LogitRows]:
    """Raw logits of texts that were scored, in the order given.

    Args:
        items: with status ok.
        tokenizer, run: of one model.
        policy: how texts are cut, as for scoring.
    """
    prefix = tokenizer.prefix_token
    for item in items:
        ids = tokenizer.encode(item.text).ids
        windows = list(plan_windows(len(ids), policy, has_prefix=prefix is not None))
        if not windows:
            continue
        parts = []
        for window in windows:
            # One window at a time: raw logits of a batch of rows may not fit into memory.
            (batch,) = build_batches(
                [[Piece(0, window)]],
                [ids],
                row_length=row_length_for(window.inputs, policy.length),
                batch_rows=1,
                prefix_token=prefix,
            )
            logits = run(batch.token_ids, batch.positions, batch.segments)[0]
            parts.append(logits[window.inputs - window.scored : window.inputs])
        first = windows[0].first_scored
        yield LogitRows(item.sample_id, np.arange(first, len(ids)), ids[first:], np.concatenate(parts))
