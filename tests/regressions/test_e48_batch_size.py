"""E48: a batch size found on short sequences was reused for long ones: 31.5 GiB too many, and all results lost."""

import pytest

from evalkit.metrics.token_classes import build_classifier
from evalkit.scenario.schema import Classes, Window
from evalkit.scoring import engine
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.texts import TextItem
from tests.evalkit.scoring.conftest import byte_level_tokenizer
from tests.evalkit.scoring.table_backend import ContextBackend

TOKENIZER = byte_level_tokenizer()
CLASSIFIER = build_classifier(Classes(), TOKENIZER, "t", None, None)
LONGEST = 2048
SHORT = [f"fee {index}" for index in range(300)]
LONG = ["The annual fee of your credit card is twelve euro. " * 90, "Maria " * 700]


class _Bounded(ContextBackend):
    """A device whose memory holds so many positions at once."""

    def __init__(self, positions: int) -> None:
        super().__init__(TOKENIZER.vocab_size, LONGEST)
        self.positions = positions

    def score(self, token_ids, targets, positions, segments):
        if token_ids.size > self.positions:
            raise MemoryError(f"{token_ids.shape}: more than {self.positions} positions")
        return super().score(token_ids, targets, positions, segments)


def score(texts, backend):
    records = []
    score_texts(
        [TextItem(text, text, text) for text in texts],
        TOKENIZER,
        backend,
        Window(length=LONGEST, stride=LONGEST),
        CLASSIFIER,
        on_records=records.extend,
    )
    assert {record.status for record in records} == {"ok"}
    return {record.sample_id: record.nll for record in records}


@pytest.mark.parametrize(
    "texts", [SHORT + LONG, LONG + SHORT, SHORT, LONG], ids=["short-long", "long-short", "short", "long"]
)
def test_e48_a_batch_holds_as_many_rows_as_their_own_length_allows(texts):
    """Many rows of short texts, one of a long text; never more positions than the longest row alone needs."""
    backend = _Bounded(max(engine._BATCH_POSITIONS, LONGEST))
    score(texts, backend)
    short = [rows for rows, length in backend.calls if length <= 64]
    long = [rows for rows, length in backend.calls if length > engine._BATCH_POSITIONS]
    assert not short or max(short) > 4
    assert all(rows == 1 for rows in long) and bool(long) == (texts is not SHORT)


def test_e48_the_batch_size_changes_no_result(monkeypatch):
    usual = score(SHORT[:40] + LONG, ContextBackend(TOKENIZER.vocab_size, LONGEST))
    for positions in (32, 4096):
        monkeypatch.setattr(engine, "_BATCH_POSITIONS", positions)
        other = score(SHORT[:40] + LONG, ContextBackend(TOKENIZER.vocab_size, LONGEST))
        for text, nll in usual.items():
            assert other[text] == pytest.approx(nll, rel=1e-6)
