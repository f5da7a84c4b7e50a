"""Public faults E01-E25 and E53 of evaluation harnesses: numbers that are wrong. One named test each."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from evalkit.backends.base import RowStats
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.registry import SPECS, by_name, spec_for
from evalkit.metrics.signature import text_signatures
from evalkit.metrics.token_classes import build_classifier
from evalkit.metrics.words import WordRule
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ClassSums
from evalkit.scenario.schema import Classes, Risk, Window
from evalkit.scoring.decisions import DecisionItem, score_decisions
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.texts import TextItem
from evalkit.tokenization import TextTokenizer
from tests.evalkit.metrics.samples import context, text_record
from tests.evalkit.scoring.conftest import byte_level_tokenizer
from tests.evalkit.scoring.table_backend import ContextBackend

TOKENIZER = byte_level_tokenizer()
CLASSIFIER = build_classifier(Classes(), TOKENIZER, "t", None, None)
LONG = "The annual fee of your credit card is twelve euro. " * 4


def score(texts, backend=None, window=None, tokenizer=TOKENIZER):
    """Records and token rows by text number."""
    backend = backend or ContextBackend(TOKENIZER.vocab_size, 64)
    records, tokens = [], {}
    score_texts(
        [TextItem(str(index), text, str(index)) for index, text in enumerate(texts)],
        tokenizer,
        backend,
        window or Window(length=64, stride=64),
        CLASSIFIER,
        on_records=records.extend,
        on_tokens=lambda rows: tokens.update({int(rows.sample_id): rows}),
    )
    return {int(record.sample_id): record for record in records}, tokens


def values(*records, **changes):
    return {item.name: item for item in evaluate(Evidence(samples=records), context(**changes))}


def test_e01_token_i_plus_1_is_scored_from_logits_i():
    backend = ContextBackend(TOKENIZER.vocab_size, 64)
    _, tokens = score(["my card"], backend)
    ids = [1, *TOKENIZER.encode("my card").ids]
    by_hand = [backend.logprobs(ids[: index + 1])[-1, ids[index + 1]] for index in range(len(ids) - 1)]
    assert tokens[0].logprob == pytest.approx(by_hand, abs=1e-6)


def test_e03_each_metric_has_one_direction():
    """A second declaration is refused at registration, also one that `<class>` spells out, and own ones too."""
    token = next(spec for spec in SPECS if spec.name == "perplexity/token")
    assert by_name([token])["perplexity/token"].direction == "lower"
    for name in ("perplexity/token", "perplexity/head"):
        with pytest.raises(ValueError, match=f"{name} is declared twice"):
            by_name([*SPECS, replace(token, name=name, direction="higher")])
    # Results, comparisons and the judge take it from there.
    for item in values(text_record("a"), text_record("b")).values():
        assert item.direction == spec_for(item.name).direction


def test_e04_divided_by_the_number_of_scored_targets():
    record = text_record(
        "a", tokens=8, scored=7, unconditioned=1, nll=14.0, classes={"head": ClassSums(7, nll=14.0)}
    )
    assert values(record)["perplexity/token"].value == pytest.approx(math.exp(2))


def test_e05_tokens_not_batches_are_averaged():
    long = text_record("a", scored=99, nll=99.0, classes={})
    short = text_record("b", scored=1, nll=5.0, classes={})
    assert values(long, short)["perplexity/token"].value == pytest.approx(math.exp(104 / 100))


def test_e06_e08_padding_and_place_in_the_row_do_not_matter():
    texts = ["a", "my card", LONG[:50], "fee", LONG]
    window = Window(length=24, stride=8)
    together, _ = score(texts, window=window)
    for index, text in enumerate(texts):
        alone, _ = score([text], window=window)
        assert together[index].nll == pytest.approx(alone[0].nll, rel=1e-6)


def test_e07_a_genuine_token_with_the_padding_id_is_scored():
    records, tokens = score(["fee<|pad|>fee<|end|>"])
    assert list(tokens[0].token_id).count(0) == 1
    assert records[0].scored == records[0].tokens == len(tokens[0].token_id)


@pytest.mark.parametrize("prefix", ["first", "every"])
@pytest.mark.parametrize(("length", "stride"), [(8, 8), (8, 3), (16, 16), (64, 1), (5, 4)])
def test_e09_e10_e11_e12_every_token_and_byte_once_for_any_window(length, stride, prefix):
    records, tokens = score([LONG, "中文😀" * 9], window=Window(length=length, stride=stride, prefix=prefix))
    for index, text in enumerate((LONG, "中文😀" * 9)):
        rows, size = tokens[index], len(text.encode())
        assert list(rows.index) == list(range(len(TOKENIZER.encode(text).ids)))
        assert (rows.end_byte - rows.start_byte).sum() == size
        assert records[index].bytes_scored == records[index].bytes == size


def test_e12_e14_e15_window_and_prefix_policy_are_in_the_signature():
    signatures = {
        text_signatures(Window(length=length, stride=8, prefix=prefix), "fp32", "c", "t", "whitespace")[
            family
        ]
        for length in (8, 16)
        for prefix in ("first", "every", "none")
        for family in ("text", "bytes")
    }
    assert len(signatures) == 12


class _Recording(ContextBackend):
    fed: list[list[int]]

    def score(self, token_ids, targets, positions, segments):
        self.fed = [
            [int(token) for token in token_ids[row, segments[row] == segment]]
            for row in range(len(token_ids))
            for segment in sorted(set(segments[row]) - {0})
        ]
        return super().score(token_ids, targets, positions, segments)


@pytest.mark.parametrize(("prefix", "expected"), [("first", 1), ("every", 3), ("none", 0)])
def test_e13_e15_the_prefix_token_is_fed_as_often_as_the_policy_says(prefix, expected):
    backend = _Recording(TOKENIZER.vocab_size, 64)
    text = "0123456789 QWERTZ xyz"
    assert 15 < len(TOKENIZER.encode(text).ids) < 23
    score([text], backend, Window(length=8, stride=8, prefix=prefix))
    starts = [window[0] for window in backend.fed]
    assert starts.count(1) == expected
    assert all(1 not in window[1:] for window in backend.fed)


def _crossing_tokenizer() -> TextTokenizer:
    # One token spans the join of prompt and label: "x" + " " + "y" is merged.
    vocabulary = {token: index for index, token in enumerate(["p", "x", " ", "y", "n", "x ", "x y", "<s>"])}
    merges = [("x", " "), ("x ", "y")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    return TextTokenizer(tokenizer, prefix_token=7, end_token=None, chat_template=None)


def test_e16_e17_a_token_across_the_join_belongs_to_the_label():
    tokenizer = _crossing_tokenizer()
    assert len(tokenizer.encode("px y").ids) < len(tokenizer.encode("px").ids) + len(
        tokenizer.encode(" y").ids
    )
    backend = ContextBackend(8, 16)
    records = []
    score_decisions(
        [DecisionItem("a", "px", "y", "a"), DecisionItem("b", "p", "n", "b")],
        tokenizer,
        backend,
        Risk(data="d", labels=["y", "n"], high_risk="y"),
        seed=1,
        on_records=records.extend,
    )
    found = {record.sample_id: record.label_logprobs for record in records}
    ids = {label: tokenizer.encode_ids(f"px {label}", special=True) for label in "yn"}
    assert ids == {"y": [0, 6], "n": [0, 5, 4]}
    # Where a token ends with the prompt, all of the label's own tokens are asked and none of the prompt's.
    for label, expected in zip("yn", found["b"], strict=True):
        tokens = tokenizer.encode_ids(f"p {label}", special=True)
        assert tokens == [0, 2, {"y": 3, "n": 4}[label]]
        logprobs = backend.logprobs([7, *tokens])
        assert expected == pytest.approx(logprobs[1, tokens[1]] + logprobs[2, tokens[2]], abs=1e-5)
    for label, expected in zip("yn", found["a"], strict=True):
        logprobs = backend.logprobs([7, *ids[label]])
        by_hand = sum(logprobs[index, ids[label][index]] for index in range(1, len(ids[label])))
        assert expected == pytest.approx(by_hand, abs=1e-5)


def test_e18_bits_per_byte_has_its_logarithm_and_one_span():
    record = text_record("a", nll=40 * math.log(2), bytes_scored=40, bytes=44)
    assert values(record)["bits_per_byte"].value == pytest.approx(1.0)


def test_e19_bytes_come_from_the_source_text():
    text = "a\x01b\u200b中\r\n"
    records, _ = score([text])
    assert records[0].bytes_scored == len(text.encode())


@pytest.mark.parametrize(("text", "words"), [("", 0), ("  a b ", 2), ("a\n", 1), ("你好世界", 0)])
def test_e20_words(text, words):
    assert WordRule().count(text) == words


def test_e20_word_perplexity_of_chinese_is_null_with_the_reason():
    record = text_record("a", words=0)
    found = values(record)["perplexity/word"]
    assert found.value is None and "perplexity/byte" in found.reason


def test_e21_e22_perplexities_are_never_averaged():
    easy = [text_record(f"e{i}", cluster="easy", nll=30.0, classes={}) for i in range(9)]
    hard = text_record("h", scored=2, nll=14.0, classes={})
    found = values(*easy, hard)["perplexity/token"].value
    assert found == pytest.approx(math.exp((9 * 30 + 14) / 92))
    assert found < (9 * math.exp(3) + math.exp(7)) / 10


class _Broken(ContextBackend):
    def __init__(self, value: float, field: str) -> None:
        super().__init__(TOKENIZER.vocab_size, 64)
        self.value, self.field = value, field

    def score(self, token_ids, targets, positions, segments):
        stats = vars(super().score(token_ids, targets, positions, segments))
        # One token in the middle of the first segment.
        stats[self.field][0, 2] = self.value
        return RowStats(**stats)


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize(("field", "name"), [("logprob", "log-probability"), ("entropy", "entropy")])
def test_e23_a_number_that_is_not_finite_is_an_error_of_its_text(value, field, name):
    records, tokens = score(["the annual fee"], _Broken(value, field))
    assert records[0].status == "error"
    assert records[0].reason.startswith(f"the model's {name} of token 2 (byte ")
    assert (records[0].nll, records[0].classes, tokens) == (0.0, {}, {})


def test_e23_half_precision_logits_are_widened_before_the_softmax():
    """Against float64 on the same float16 logits; a softmax in float16 is off by a thousand times more."""
    from mindspore import Tensor

    from evalkit.scoring.head import ScoringHead

    logits = np.random.default_rng(0).normal(0, 4, (32, 500)).astype(np.float16)
    targets = np.arange(32, dtype=np.int32)
    wide = logits.astype(np.float64)
    expected = (wide - np.log(np.exp(wide).sum(-1, keepdims=True)))[np.arange(32), targets]
    found = ScoringHead(500)(Tensor(logits), Tensor(targets))[0].asnumpy()
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-5
    centred = logits - logits.max(-1, keepdims=True)
    narrow = centred - np.log(np.exp(centred).sum(-1, keepdims=True, dtype=np.float16))
    assert np.abs(narrow[np.arange(32), targets] - expected).max() > 1e-3


def test_e23_sums_do_not_drift():
    # A million float32 terms of 0.1: a float32 sum would be off by hundreds.
    from evalkit.metrics.accumulators import from_fixed, to_fixed

    terms = np.full(1_000_000, 0.1, dtype=np.float32)
    assert from_fixed(int(to_fixed(terms).sum())) == pytest.approx(100_000.0015, abs=1e-3)


def test_e24_oov_is_shown_with_its_rate_and_without_it():
    """One token in ten is out of vocabulary, with 8 of 21 nats: a model that knows fewer words can't hide it."""
    found = values(text_record("a"), text_record("b"))
    assert found["perplexity/oov"].value == pytest.approx(math.exp(8))
    assert found["perplexity/without_oov"].value == pytest.approx(math.exp(13 / 9))
    assert found["perplexity/token"].value == pytest.approx(math.exp(21 / 10))
    assert found["rate/oov"].value == pytest.approx(0.1)


def test_e24_tokens_of_different_tokenizers_are_not_comparable_bytes_are():
    first, second = (
        text_signatures(Window(length=8, stride=8), "fp32", "c", name, "whitespace") for name in ("t1", "t2")
    )
    assert first["text"] != second["text"]
    assert first["bytes"] == second["bytes"] and first["words"] == second["words"]


def test_e53_an_overlong_context_is_left_out_counted_and_measured_rightly():
    records = []
    prompt = "amount " * 40
    score_decisions(
        [DecisionItem("a", prompt, "yes", "a"), DecisionItem("b", "fee", "no", "b")],
        TOKENIZER,
        ContextBackend(TOKENIZER.vocab_size, 32),
        Risk(data="d", labels=["yes", "no"], high_risk="no"),
        seed=1,
        on_records=records.extend,
    )
    found = {record.sample_id: record for record in records}
    # The last token of the label is asked, not fed; the prefix token is fed.
    needed = len(TOKENIZER.encode(f"{prompt} yes").ids)
    assert found["a"].status == "truncated"
    assert f"needs {needed} input positions with its label, the model reads 32" in found["a"].reason
    assert found["b"].status == "ok"
