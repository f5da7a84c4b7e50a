"""Scoring texts: against an independent float64 computation, and what must not change a number."""

import math
import random
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.errors import InputError
from evalkit.runs.records import SampleRecord
from evalkit.scenario.schema import Window
from evalkit.scoring import blocks
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.text_records import TokenRows
from evalkit.scoring.texts import TextItem
from tests.evalkit.scoring.conftest import byte_level_tokenizer
from tests.evalkit.scoring.table_backend import ContextBackend

TEXTS = [
    "The annual fee of your credit card is twelve euro.",
    "Zanzibar refunds, unseen words!",
    "您的信用卡年费是多少？",
    "emoji 😀 and tabs\tand\nlines",
    "x",
    "The annual fee of your credit card is twelve euro. " * 6,
    "I lost my card, 中文 mixed in.",
]


def items(texts=TEXTS) -> list[TextItem]:
    return [TextItem(f"t{index}", text, f"c{index % 3}", ("all",)) for index, text in enumerate(texts)]


WINDOW = Window(length=24, stride=16)


def score(texts, tokenizer, classifier, window=WINDOW, backend=None):
    backend = backend or ContextBackend(tokenizer.vocab_size, 64)
    records: list[SampleRecord] = []
    tokens: dict[str, TokenRows] = {}
    score_texts(
        texts,
        tokenizer,
        backend,
        window,
        classifier,
        on_records=records.extend,
        on_tokens=lambda rows: tokens.update({rows.sample_id: rows}),
    )
    return {record.sample_id: record for record in records}, tokens


def comparable(records: dict[str, SampleRecord]) -> dict[str, SampleRecord]:
    return {key: replace(record, elapsed_ns=0) for key, record in records.items()}


def test_equals_an_independent_float64_computation(tokenizer, classifier):
    backend = ContextBackend(tokenizer.vocab_size, 64)
    records, tokens = score(items(), tokenizer, classifier, Window(length=64, stride=64), backend)
    for item in items():
        ids = list(tokenizer.encode(item.text).ids)
        if len(ids) > 64:
            continue
        logprobs = backend.logprobs([1, *ids[:-1]])
        expected = logprobs[np.arange(len(ids)), ids]
        assert np.allclose(tokens[item.sample_id].logprob, expected, atol=1e-6)
        assert records[item.sample_id].nll == pytest.approx(-math.fsum(expected), abs=1e-4)
        assert list(tokens[item.sample_id].token_id) == ids


class ParallelBackend(ContextBackend):
    """The same numbers from several threads; a later call may end before an earlier one."""

    parallel_calls = 2

    def __init__(self, *sizes, fails_at: int | None = None) -> None:
        super().__init__(*sizes)
        self.threads: list[int] = []
        self.fails_at = fails_at
        self._counting = threading.Lock()
        self._both = threading.Barrier(2)

    def score(self, *arrays):
        with self._counting:
            self.threads.append(threading.get_ident())
            number = len(self.threads)
        if number <= 2:  # one thread might else be quick enough for all of it
            self._both.wait(60)
        if number == self.fails_at:
            raise InputError("token 7 is unknown")
        time.sleep(0.01 * (number % 2))
        return super().score(*arrays)


def many(count=300) -> list[TextItem]:
    return items([f"{TEXTS[index % len(TEXTS)]} {index}" for index in range(count)])


def test_parallel_calls_change_no_bit(tokenizer, classifier):
    plain, parallel = (kind(tokenizer.vocab_size, 64) for kind in (ContextBackend, ParallelBackend))
    expected = comparable(score(many(), tokenizer, classifier, backend=plain)[0])
    assert comparable(score(many(), tokenizer, classifier, backend=parallel)[0]) == expected
    assert sorted(parallel.calls) == sorted(plain.calls) and len(plain.calls) > 4
    assert len(set(parallel.threads)) == 2 and threading.get_ident() not in parallel.threads


def test_a_failing_parallel_call_is_raised_after_the_batches_before_it(tokenizer, classifier):
    backend = ParallelBackend(tokenizer.vocab_size, 64, fails_at=4)
    found: list[SampleRecord] = []
    threads = set(threading.enumerate())
    with pytest.raises(InputError, match="token 7 is unknown"):
        score_texts(many(), tokenizer, backend, WINDOW, classifier, on_records=found.extend)
    whole = comparable(score(many(), tokenizer, classifier)[0])
    assert 0 < len(found) < len(whole)
    assert all(whole[key] == record for key, record in comparable({r.sample_id: r for r in found}).items())
    assert set(threading.enumerate()) <= threads and len(backend.threads) <= 6


def test_strided_windows_give_each_token_its_longest_context(tokenizer, classifier):
    backend = ContextBackend(tokenizer.vocab_size, 64)
    _, tokens = score(items(), tokenizer, classifier, Window(length=24, stride=5), backend)
    ids = list(tokenizer.encode(TEXTS[5]).ids)
    assert len(ids) > 30
    for index in (0, 10, 24, 30, len(ids) - 1):
        # Windows end at 24, 29, 34, ...; a window that ends at `end` is fed the 24 tokens before its last
        # one.
        end = 24 if index < 24 else min(len(ids), 24 + 5 * math.ceil((index - 23) / 5))
        start = max(0, end - 1 - 24)
        context = ids[start:index] if index >= 24 else [1, *ids[:index]]
        expected = backend.logprobs(context)[-1, ids[index]]
        assert tokens["t5"].logprob[index] == pytest.approx(expected, abs=1e-6)


def test_conservation(tokenizer, classifier):
    records, tokens = score(items(), tokenizer, classifier)
    for item in items():
        record = records[item.sample_id]
        assert record.status == "ok"
        assert record.tokens == record.scored + record.unconditioned == len(tokenizer.encode(item.text).ids)
        assert record.bytes == record.bytes_scored == len(item.text.encode())
        assert sum(part.tokens for part in record.classes.values()) == record.scored
        assert sum(part.bytes for part in record.classes.values()) == record.bytes
        assert sum(part.nll for part in record.classes.values()) == record.nll
        rows = tokens[item.sample_id]
        assert list(rows.start_byte[1:]) == list(rows.end_byte[:-1])
        assert rows.start_byte[0] == 0 and rows.end_byte[-1] == record.bytes


def test_without_a_prefix_the_first_token_is_counted_not_scored(classifier):
    tokenizer = byte_level_tokenizer(prefix_token=None)
    records, tokens = score(items(), tokenizer, classifier)
    for record in records.values():
        assert record.unconditioned == 1
        assert record.tokens == record.scored + 1
        assert record.bytes_scored < record.bytes
    # A text of one token: nothing can be asked, nothing is lost.
    assert records["t4"].scored == 0 and records["t4"].status == "ok"
    assert "t4" not in tokens


def test_any_permutation_gives_the_same_bits(tokenizer, classifier):
    texts = items()
    expected = comparable(score(texts, tokenizer, classifier)[0])
    for seed in range(5):
        shuffled = texts.copy()
        random.Random(seed).shuffle(shuffled)
        assert comparable(score(shuffled, tokenizer, classifier)[0]) == expected


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=7, unique=True), st.data())
def test_packing_equals_one_by_one(tokenizer, classifier, chosen, data):
    length = data.draw(st.integers(4, 64))
    window = Window(length=length, stride=data.draw(st.integers(1, length)))
    together, _ = score(items(chosen), tokenizer, classifier, window)
    for item in items(chosen):
        alone, _ = score([item], tokenizer, classifier, window)
        assert together[item.sample_id].nll == pytest.approx(alone[item.sample_id].nll, rel=1e-6)
        assert together[item.sample_id].scored == alone[item.sample_id].scored


def test_blocks_do_not_change_a_number(tokenizer, classifier, monkeypatch):
    expected = comparable(score(items(), tokenizer, classifier)[0])
    monkeypatch.setattr(blocks, "_MAX_ITEMS", 2)
    found = comparable(score(items(), tokenizer, classifier)[0])
    assert found == expected


def test_equal_texts_are_scored_once_and_recorded_each(tokenizer, classifier):
    backend = ContextBackend(tokenizer.vocab_size, 64)
    twins = [TextItem("a", TEXTS[0], "a"), TextItem("b", TEXTS[0], "b", ("vip",))]
    records, _ = score(twins, tokenizer, classifier, Window(length=64, stride=64), backend)
    assert records["a"].nll == records["b"].nll
    assert (records["b"].cluster, records["b"].tags) == ("b", ["vip"])
    assert backend.calls == [(1, 64)]


def test_texts_that_cannot_be_scored_are_counted_by_status(tokenizer, classifier):
    bad = {"empty": "", "spaces": " \n\t", "surrogate": "a\ud800b", "nul": "a\0b", "good": "fee"}
    records, _ = score([TextItem(key, text, key) for key, text in bad.items()], tokenizer, classifier)
    assert {key: record.status for key, record in records.items()} == {
        "empty": "skipped",
        "spaces": "skipped",
        "surrogate": "error",
        "nul": "error",
        "good": "ok",
    }
    assert all(record.reason for key, record in records.items() if key != "good")
    assert records["surrogate"].text is None


def test_a_token_outside_the_models_vocabulary_is_an_error_of_that_text(tokenizer, classifier):
    backend = ContextBackend(200, 64)
    records, _ = score(items(), tokenizer, classifier, backend=backend)
    assert records["t0"].status == "error"
    assert "outside the model's vocabulary of 200" in records["t0"].reason


def test_special_tokens_in_a_text_are_read_as_such(tokenizer, classifier):
    _, tokens = score([TextItem("a", "fee<|end|>", "a")], tokenizer, classifier)
    assert tokens["a"].token_id[-1] == 2


def test_worst_tokens_are_the_most_surprising_ones(tokenizer, classifier):
    records, tokens = score(items(), tokenizer, classifier)
    worst = records["t5"].worst
    assert len(worst) == 8
    assert [logprob for _, _, logprob in worst] == sorted(tokens["t5"].logprob.tolist())[:8]


def test_progress_counts_every_text(tokenizer, classifier):
    done: list[int] = []
    backend = ContextBackend(tokenizer.vocab_size, 64)
    texts = [*items(), TextItem("empty", "", "empty")]
    score_texts(
        texts,
        tokenizer,
        backend,
        Window(length=24, stride=24),
        classifier,
        on_records=lambda records: None,
        progress=done.append,
    )
    assert sum(done) == len(texts)
