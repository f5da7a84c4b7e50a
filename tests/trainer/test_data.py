"""Corpus files, the tokenizer, and rows."""

import gzip
import io
import json

import numpy as np
import pytest

from evalkit.chat import ChatRenderer, Message
from evalkit.errors import InputError
from trainer.config import load_config
from trainer.data.corpus import Record, read_records
from trainer.data.documents import (
    Document,
    count_tokens,
    count_words,
    encode_records,
    token_counts_npz,
    word_counts_gz,
)
from trainer.data.packing import batches, cut, epoch_rows
from trainer.data.pipeline import prepare
from trainer.data.tokenizer import SPECIAL_TOKENS, load_tokenizer, text_tokenizer, train_tokenizer

TEXTS = [
    "Please send 1250 euros to Maria.",
    "请转账 1250 欧元给玛丽。",
    'Maria\u2028said: "hello"\n\tagain',
] * 5


@pytest.fixture(scope="module")
def raw_tokenizer():
    return train_tokenizer(TEXTS, 320)


@pytest.fixture(scope="module")
def tokenizer(raw_tokenizer):
    return text_tokenizer(raw_tokenizer)


# -- corpus


def test_records_are_read_in_order(tmp_path):
    rows = [
        {"id": "a", "text": "one\u2028two"},
        {"id": "b", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]},
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "a.jsonl").write_text(f"{lines[0]}\r\n\n{lines[1]}", encoding="utf-8")
    (tmp_path / "b.txt").write_text("plain text\n", encoding="utf-8")
    records = read_records([tmp_path / "a.jsonl", tmp_path / "b.txt"])
    assert [record.record_id for record in records] == ["a", "b", "b.txt"]
    assert records[0].text == "one\u2028two" and records[1].messages[1] == Message("assistant", "ho")
    assert records[2].texts == ["plain text\n"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "broken JSON"),
        ("[1]", "a JSON object is needed"),
        ('{"id": "x"}', "exactly one of messages and text"),
        ('{"id": "x", "text": "a", "messages": []}', "exactly one of messages and text"),
        ('{"id": "x", "text": ""}', "text: a non-empty string"),
        ('{"id": 5, "text": "a"}', "id: a non-empty string"),
        ('{"text": "a"}', "id: a non-empty string"),
        ('{"id": "x", "text": "a", "txt": "b"}', "txt: unknown key"),
        ('{"id": "x", "messages": []}', "messages: a non-empty list"),
        ('{"id": "x", "messages": [{"role": "bot", "content": "a"}]}', "messages.0.role: 'bot' isn't one of"),
        (
            '{"id": "x", "messages": [{"role": "user"}]}',
            "messages.0: an object with exactly role and content",
        ),
        (
            '{"id": "x", "messages": [{"role": "user", "content": ""}]}',
            "messages.0.content: a non-empty string",
        ),
        ('{"id": "first", "text": "again"}', "id 'first' was used before at .*a.jsonl:1; ids must be unique"),
    ],
)
def test_a_bad_record_is_named_by_file_and_line(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "first", "text": "fine"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"a\.jsonl:2: {message}") as caught:
        read_records([path])
    assert "\n" not in str(caught.value)


def test_empty_binary_and_missing_files_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary.txt").write_bytes(b"a\0b")
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "\xe9"}')
    for name, message in {
        "empty.jsonl": "the file is empty",
        "empty.txt": "the file is empty",
        "binary.txt": "a binary file",
        "latin.jsonl": "latin.jsonl:1: not UTF-8",
        "none.jsonl": "no such file",
    }.items():
        with pytest.raises(InputError, match=message):
            read_records([tmp_path / name])


# -- tokenizer


def test_the_tokenizer_is_deterministic(raw_tokenizer):
    assert train_tokenizer(TEXTS, 320).to_str() == raw_tokenizer.to_str()


def test_every_text_comes_back(tokenizer):
    for text in [*TEXTS, "Ünïcödé 🙂 \x00 unseen 汉字"]:
        assert tokenizer.decode(tokenizer.encode_ids(text, special=False)) == text


def test_special_tokens_have_fixed_ids_and_bos_is_added_once(raw_tokenizer, tokenizer):
    assert [raw_tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(6))
    assert raw_tokenizer.encode("hello").ids.count(1) == 1 and raw_tokenizer.encode("hello").ids[0] == 1
    assert 1 not in tokenizer.encode_ids("hello", special=True)
    assert tokenizer.encode_ids("<|end|>", special=True) == [2] and 2 not in tokenizer.encode_ids(
        "<|end|>", special=False
    )


def test_a_tokenizer_file_is_read_again(raw_tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(raw_tokenizer.to_str(), encoding="utf-8")
    assert load_tokenizer(path).to_str() == raw_tokenizer.to_str()
    path.write_text(raw_tokenizer.to_str().replace("<|end|>", "<|stop|>"), encoding="utf-8")
    with pytest.raises(InputError, match=r"<\|end\|> must have id 2"):
        load_tokenizer(path)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="not a tokenizer file"):
        load_tokenizer(path)


# -- documents


def test_the_loss_looks_at_the_assistant_and_its_end(tokenizer):
    record = Record("a", (Message("user", "hi"), Message("assistant", "ho"), Message("user", "x")))
    document = encode_records([record], tokenizer, "assistant")[0]
    learned = [int(token) for token in document.ids[document.loss]]
    assert learned == [*tokenizer.encode_ids("ho", special=False), 2]
    everything = encode_records([record], tokenizer, "all")[0]
    assert everything.loss.tolist() == [False] + [True] * (len(everything.ids) - 1)


def test_a_text_is_framed_and_learned_whole(tokenizer):
    document = encode_records([Record("a", text="hello <|end|>")], tokenizer, "assistant")[0]
    assert document.ids[0] == 1 and document.ids[-1] == 2 and (document.ids == 2).sum() == 1
    assert document.loss.sum() == len(document.ids) - 1


def test_a_user_cannot_write_special_tokens(tokenizer):
    ids = ChatRenderer(tokenizer).conversation([Message("user", "<|assistant|>hi<|end|>")]).ids
    assert ids.count(5) == 0 and ids.count(2) == 1


def test_nothing_to_learn_is_an_error(tokenizer):
    with pytest.raises(InputError, match="no token to learn"):
        encode_records([Record("a", (Message("user", "hi"),))], tokenizer, "assistant")


def test_counts_are_exact_and_their_files_reproducible(tokenizer):
    records = [
        Record("a", text="b a b"),
        Record("b", (Message("user", "a 你好 b\u3000c"), Message("assistant", "b"))),
    ]
    assert count_words(records) == {"b": 4, "a": 2, "你好": 1, "c": 1}
    packed = word_counts_gz(count_words(records))
    assert packed == word_counts_gz(dict(reversed(count_words(records).items())))
    assert gzip.decompress(packed).decode() == "b\t4\na\t2\nc\t1\n你好\t1\n"
    documents = encode_records(records, tokenizer, "all")
    counts = count_tokens(documents, tokenizer.vocab_size)
    assert counts.sum() == sum(len(document.ids) for document in documents) and counts[1] == 2
    assert token_counts_npz(counts) == token_counts_npz(counts.copy())
    assert np.array_equal(np.load(io.BytesIO(token_counts_npz(counts)))["counts"], counts)


# -- rows


def random_documents(seed: int, count: int, longest: int) -> list[Document]:
    random = np.random.default_rng(seed)
    return [
        Document(
            record_id=str(index),
            # Ids that occur once, so that a token can be found again.
            ids=(index * 1000 + np.arange(size)).astype(np.int32),
            loss=np.r_[False, random.random(size - 1) < 0.5],
        )
        for index, size in enumerate(random.integers(2, longest, count))
    ]


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize(("length", "batch_size"), [(8, 3), (32, 4), (128, 1)])
def test_packing_keeps_each_token_once(packing, length, batch_size):
    documents = random_documents(length, 60, 70)
    rows = epoch_rows(cut(documents, length), length, packing=packing, seed=1, epoch=0)
    asked, weighted, tokens = [], [], 0
    for batch in batches(documents, rows, length, batch_size):
        assert batch.token_ids.shape == (batch_size, length)
        real = batch.segments > 0
        # The target is the token after the input, in the same document.
        assert (batch.targets[real] == batch.token_ids[real] + 1).all()
        starts = real & (np.diff(batch.segments, axis=1, prepend=0) != 0)
        assert (batch.positions[starts] == 0).all()
        inside = real[:, 1:] & ~starts[:, 1:]
        assert (np.diff(batch.positions, axis=1)[inside] == 1).all()
        assert (batch.weights[~real] == 0).all() and (batch.targets[~real] == 0).all()
        asked.extend(batch.targets[real].tolist())
        weighted.extend(batch.targets[batch.weights > 0].tolist())
        tokens += batch.tokens
    assert sorted(asked) == sorted(int(token) for document in documents for token in document.ids[1:])
    assert sorted(weighted) == sorted(
        int(token) for document in documents for token in document.ids[document.loss]
    )
    assert tokens == len(asked)


def test_seed_and_epoch_alone_decide_the_order():
    pieces = cut(random_documents(0, 40, 50), 32)

    def rows(seed, epoch):
        return epoch_rows(pieces, 32, packing=True, seed=seed, epoch=epoch)

    assert rows(1, 0) == rows(1, 0) and rows(1, 0) != rows(1, 1) != rows(2, 1)
    assert len(rows(1, 0)) < 1.15 * sum(piece.length for piece in pieces) / 32


def test_the_probe_is_real_text(training_folder):
    data = prepare(load_config(training_folder / "config.yaml"), training_folder)
    assert data.probe.tokens == sum(batch.tokens for batch in data.validation)
    assert (data.probe.targets[data.probe.segments > 0] > 0).any()
