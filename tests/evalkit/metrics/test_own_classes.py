"""Token classes of the user: part of the partition, by precedence, exact."""

import re
from dataclasses import replace
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.errors import InputError
from evalkit.metrics import references
from evalkit.metrics.context import ClassSetup
from evalkit.metrics.counts import Counts
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.own_classes import ClassMembers, OwnClass, load_class
from evalkit.metrics.token_classes import build_classifier
from evalkit.runs.evidence import Evidence
from evalkit.scenario.schema import Classes, Domain, Window
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.texts import TextItem
from tests.evalkit.metrics.samples import context
from tests.evalkit.scoring.conftest import byte_level_tokenizer
from tests.evalkit.scoring.table_backend import ContextBackend

TOKENIZER = byte_level_tokenizer()
COUNTS = Counts(
    "here", "ab12", np.arange(TOKENIZER.vocab_size, dtype=np.int64)[::-1].copy(), None, {"the": 9, "fee": 3}
)
TEXTS = ["The annual fee is 250 euro, or 12 a month.", "您的信用卡年费是250元。", "No sum at all.", "😀 7"]
SUMS = OwnClass("own/sums", "act", 0.1, spans=lambda text: [m.span() for m in re.finditer(r"\d+", text)])
DIGITS = OwnClass("own/digits", "act", 0.1, token=lambda data: any(byte in b"0123456789" for byte in data))


def classifier(precedence, *own, sha256="ab"):
    setups = [(ClassSetup(one.name, "m:a", sha256, one.action, one.alarm), one) for one in own]
    spec = Classes(domain=Domain(glossary="g"), precedence=precedence)
    return build_classifier(spec, TOKENIZER, "t", COUNTS, ["annual fee", "信用卡"], setups)


def score(chosen, texts=TEXTS):
    records = []
    score_texts(
        [TextItem(f"t{index}", text, f"t{index}") for index, text in enumerate(texts)],
        TOKENIZER,
        ContextBackend(TOKENIZER.vocab_size, 32),
        Window(length=32, stride=16),
        chosen,
        on_records=records.extend,
    )
    return sorted(records, key=lambda record: record.sample_id)


def tokens_of(chosen, name, text):
    encoded, data = TOKENIZER.encode(text), text.encode()
    codes = chosen.classify(text, encoded)
    parts = zip(encoded.starts, encoded.ends, codes, strict=True)
    return [data[start:end] for start, end, code in parts if chosen.names[code] == name]


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_sums_of_all_classes_are_the_totals_wherever_the_own_ones_stand(order):
    precedence = ["oov", "domain", "frequency"]
    precedence.insert(order, "own/sums")
    precedence.append("own/digits")
    plain = score(classifier(["oov", "domain", "frequency"]))
    for record, before in zip(score(classifier(precedence, SUMS, DIGITS)), plain, strict=True):
        parts = record.classes.values()
        assert sum(part.tokens for part in parts) == record.scored
        assert sum(part.nll for part in parts) == record.nll == before.nll
        assert sum(part.bytes for part in parts) == record.bytes_scored


def test_the_first_class_that_claims_a_token_gets_it():
    text = TEXTS[0]
    spans_first = classifier(["own/sums", "own/digits", "oov", "domain", "frequency"], SUMS, DIGITS)
    assert b"".join(tokens_of(spans_first, "own/sums", text)).replace(b" ", b"") == b"25012"
    assert tokens_of(spans_first, "own/digits", text) == []
    token_first = classifier(["own/digits", "own/sums", "oov", "domain", "frequency"], SUMS, DIGITS)
    assert b"".join(tokens_of(token_first, "own/digits", text)).replace(b" ", b"") == b"25012"
    assert not set(b"".join(tokens_of(token_first, "own/sums", text))) & set(b"0123456789")
    # Behind the bands, which claim every token, a class is empty.
    last = classifier(["oov", "domain", "frequency", "own/digits"], DIGITS)
    assert tokens_of(last, "own/digits", text) == []


@settings(max_examples=60, deadline=None)
@given(st.text("a1 年€😀\n", min_size=1, max_size=30), st.sets(st.integers(0, 29)))
def test_span_classes_hold_the_touched_tokens(text, places):
    spans = [(place, place + 1) for place in sorted(places) if place < len(text)]
    chosen = classifier(["own/x", "frequency"], OwnClass("own/x", "act", 0.1, spans=lambda _: spans))
    encoded = TOKENIZER.encode(text)
    bytes_of = [len(text[:end].encode()) for end in range(len(text) + 1)]
    wanted = {byte for start, end in spans for byte in range(bytes_of[start], bytes_of[end])}
    codes = chosen.classify(text, encoded)
    for start, end, code in zip(encoded.starts, encoded.ends, codes, strict=True):
        assert (chosen.names[code] == "own/x") == bool(wanted & set(range(start, end)))


def test_metrics_of_a_class_have_its_declaration():
    chosen = classifier(["own/digits", "oov", "domain", "frequency"], DIGITS)
    records = score(chosen, [f"The fee of {index} is {index * 37} euro." for index in range(40)])
    setup = ClassSetup("own/digits", "m:a", "ab", "look at numbers.", 0.25)
    nothing = ClassSetup("own/nothing", "m:b", "cd", "act", 0.1)
    found = {
        item.name: item for item in evaluate(Evidence(tuple(records)), context(classes=(setup, nothing)))
    }
    sums = [record.classes["own/digits"] for record in records]
    digits = found["perplexity/own/digits"]
    assert digits.value == pytest.approx(
        np.exp(sum(one.nll for one in sums) / sum(one.tokens for one in sums))
    )
    assert digits.interval.low < digits.value < digits.interval.high
    assert digits.action == "25 % above the baseline: look at numbers."
    assert digits.details["token_share"] == pytest.approx(digits.n / found["perplexity/token"].n)
    assert found["logits/rank/own/digits"].n == digits.n
    empty = found["perplexity/own/nothing"]
    assert empty.value is None and empty.reason == "no token of the texts belongs to it"


def test_the_digest_names_the_code():
    precedence = ["own/digits", "oov", "domain", "frequency"]
    digests = {
        classifier(["oov", "domain", "frequency"]).digest,
        classifier(precedence, DIGITS).digest,
        classifier(precedence, DIGITS, sha256="cd").digest,
        classifier(["oov", "own/digits", "domain", "frequency"], DIGITS).digest,
    }
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            OwnClass("own/x", "act", 0.1, token=lambda data: 1 / 0),
            r"own/x: its function failed for the token b'a",
        ),
        (
            OwnClass("own/x", "act", 0.1, token=len),
            r"own/x: its function gave \d for the token b'a.*True or False",
        ),
        (
            OwnClass("own/x", "act", 0.1, spans=lambda text: [(0, 99)]),
            r"text\.classes: own/x: its function gave the span 0-99",
        ),
        (OwnClass("own/x", "act", 0.1, spans=lambda text: 3), r"own/x: its function failed with TypeError"),
    ],
)
def test_a_function_that_fails_is_named(declared, message):
    with pytest.raises(InputError, match=message):
        score(classifier(["own/x", "frequency"], declared), ["a fee"])


def test_a_token_without_bytes_is_not_asked():
    asked = []
    members = ClassMembers(OwnClass("own/x", "act", 0.1, token=lambda data: asked.append(data) or True))
    encoded = TOKENIZER.encode("ab")
    empty = replace(encoded, ids=encoded.ids[:1], starts=np.array([0]), ends=np.array([0]))
    assert members("ab", empty).tolist() == [False] and asked == []


def test_loading(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from evalkit.metrics.own_classes import OwnClass\n"
        "sums = OwnClass('own/sums', 'act', 0.1, spans=lambda text: [])\n"
    )
    setup, declared = load_class("mine:sums", tmp_path)
    assert (setup.name, setup.action, setup.alarm) == ("own/sums", "act", 0.1)
    assert declared.spans("x") == [] and len(setup.sha256) == 64


def test_loading_by_entry_point(tmp_path, monkeypatch):
    (tmp_path / "bank_classes.py").write_text(
        "from evalkit.metrics.own_classes import OwnClass\n"
        "digits = OwnClass('own/digits', 'act', 0.1, token=bytes.isdigit)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("bank_digits", "bank_classes:digits", "evalkit.metrics")
    monkeypatch.setattr(references, "entry_points", lambda group: [point])
    setup, declared = load_class("bank_digits", None)
    assert (setup.reference, setup.name) == ("bank_digits", "own/digits")
    assert declared.token(b"7") is True
