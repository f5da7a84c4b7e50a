"""Documents, and the counts taken from them."""

import gzip
import io

import numpy as np

from evalkit.chat import ChatRenderer, Message
from trainer.data import frequencies
from trainer.data.corpus import Record
from trainer.data.documents import encode_records
from trainer.data.frequencies import TokenCounter, WordCounter, token_counts_npz


def encoded(record, tokenizer, loss_on):
    """The document of one record."""
    return next(encode_records([record], tokenizer, loss_on))


def test_the_loss_looks_at_the_assistant_and_its_end(tokenizer):
    record = Record("a", (Message("user", "hi"), Message("assistant", "ho"), Message("user", "x")))
    document = encoded(record, tokenizer, "assistant")
    learned = [int(token) for token in document.ids[document.loss]]
    assert learned == [*tokenizer.encode_ids("ho", special=False), 2]
    everything = encoded(record, tokenizer, "all")
    assert everything.loss.tolist() == [False] + [True] * (len(everything.ids) - 1)


def test_a_text_is_framed_and_learned_whole(tokenizer):
    document = encoded(Record("a", text="hello <|end|>"), tokenizer, "assistant")
    assert document.ids[0] == 1 and document.ids[-1] == 2 and (document.ids == 2).sum() == 1
    assert document.loss.sum() == len(document.ids) - 1


def test_a_user_cannot_write_special_tokens(tokenizer):
    ids = ChatRenderer(tokenizer).conversation([Message("user", "<|assistant|>hi<|end|>")]).ids
    assert ids.count(5) == 0 and ids.count(2) == 1


def test_counts_are_exact_and_their_files_reproducible(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(frequencies, "_BLOCK_TOKENS", 4)
    records = [
        Record("a", text="b a b"),
        Record("b", (Message("user", "a 你好 b\u3000c"), Message("assistant", "b"))),
    ]
    for limit in (1, 3, 1000):  # most counts on disk, or all at the end
        monkeypatch.setattr(frequencies, "_RECENT_WORDS", limit)
        words = WordCounter(tmp_path / "words.db")
        assert list(words.count(records)) == records
        words.write(tmp_path / f"{limit}.gz")
        assert (
            gzip.decompress((tmp_path / f"{limit}.gz").read_bytes()).decode() == "b\t4\na\t2\nc\t1\n你好\t1\n"
        )
    assert (tmp_path / "1.gz").read_bytes() == (tmp_path / "1000.gz").read_bytes()
    assert not (tmp_path / "words.db").exists()
    counter = TokenCounter(tokenizer.vocab_size)
    documents = list(counter.count(encode_records(records, tokenizer, "assistant")))
    ids = np.concatenate([document.ids for document in documents])
    assert counter.counts.tolist() == [int((ids == token).sum()) for token in range(tokenizer.vocab_size)]
    assert counter.counts[1] == 2 and counter.learnt == sum(document.loss.sum() for document in documents)
    assert token_counts_npz(counter.counts) == token_counts_npz(counter.counts.copy())
    assert np.array_equal(np.load(io.BytesIO(token_counts_npz(counter.counts)))["counts"], counter.counts)
