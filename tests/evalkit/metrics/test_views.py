"""Views: spans of the text, overlapping at will, summed beside the partition."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.errors import InputError
from evalkit.metrics.context import ViewSetup
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.views import SpanView, view_setup
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ClassSums
from evalkit.scenario.additions_schema import View
from evalkit.scenario.schema import Window
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.texts import TextItem
from tests.evalkit.metrics.samples import context, text_record
from tests.evalkit.scoring.conftest import classifier, tokenizer
from tests.evalkit.scoring.table_backend import ContextBackend

__all__ = ["classifier", "tokenizer"]

TEXTS = ["The annual fee is 250 euro, or 12 a month.", "您的信用卡年费是250元。", "No sum at all."]


def score(tokenizer, classifier, views, texts=TEXTS):
    records, rows = [], {}
    backend = ContextBackend(tokenizer.vocab_size, 32)
    score_texts(
        [TextItem(f"t{index}", text, f"t{index}") for index, text in enumerate(texts)],
        tokenizer,
        backend,
        Window(length=32, stride=16),
        replace(classifier, views=tuple(views)),
        on_records=records.extend,
        on_tokens=lambda item: rows.update({item.sample_id: item}),
    )
    return {record.sample_id: record for record in records}, rows


def by_hand(text, spans, rows):
    """Tokens that share a byte with a span, in plain Python, and the float64 sum of their surprise."""
    found = 0.0
    count = 0
    for start, end, logprob in zip(rows.start_byte, rows.end_byte, rows.logprob, strict=True):
        touched = {
            len(text[:first].encode()) + offset
            for first, last in spans
            for offset in range(len(text[first:last].encode()))
        }
        if touched & set(range(start, end)):
            count += 1
            found -= float(logprob)
    return count, found


def test_sums_are_those_of_the_touched_tokens(tokenizer, classifier):
    _, numbers = view_setup(View(name="numbers", regex=r"\d+"), None)
    _, wide = view_setup(View(name="wide", regex=r"fee is 250|年费是2"), None)
    records, rows = score(tokenizer, classifier, [numbers, wide])
    for name, record in records.items():
        text = TEXTS[int(name[1:])]
        for view in (numbers, wide):
            count, nll = by_hand(text, view.spans(text), rows[name])
            sums = record.views.get(view.name, ClassSums())
            assert sums.tokens == count
            assert sums.nll == pytest.approx(nll, abs=1e-6)
    assert records["t0"].views["wide"].bytes > records["t0"].views["numbers"].bytes > 0
    assert records["t2"].views == {}


def test_views_change_neither_classes_nor_totals(tokenizer, classifier):
    _, everything = view_setup(View(name="all", regex="(?s).+"), None)
    plain, _ = score(tokenizer, classifier, [])
    viewed, _ = score(tokenizer, classifier, [everything])
    for name, record in viewed.items():
        assert record.views["all"].nll == record.nll and record.views["all"].bytes == record.bytes_scored
        assert replace(record, views={}, elapsed_ns=0) == replace(plain[name], elapsed_ns=0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=8))
def test_spans_are_merged_to_the_same_characters(found):
    text = "x" * 30
    spans = SpanView("v", lambda _: found).spans(text)
    assert {c for start, end in spans for c in range(start, end)} == {
        c for a, b in found for c in range(a, b)
    }
    assert all(start < end for start, end in spans)
    assert all(one[1] < two[0] for one, two in pairwise(spans))


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda text: 1 / 0, "v: its function failed with ZeroDivisionError"),
        (lambda text: [1, 2], "v: its function failed with TypeError"),
        (lambda text: [(2, 99)], "gave the span 2-99 for a text of 4 characters"),
        (lambda text: [(3, 2)], "gave the span 3-2"),
    ],
)
def test_a_function_that_fails_is_named(find, message):
    with pytest.raises(InputError, match=message):
        SpanView("v", find).spans("text")


def test_metrics_of_views():
    views = (
        ViewSetup("sums", "ab"),
        ViewSetup("fees", "cd", tag="fees"),
        ViewSetup("none", "ef", tag="none"),
    )
    texts = [
        text_record(
            f"t{index:02}",
            nll=21.0,
            tags=["fees"] if index % 4 == 0 else [],
            views={"sums": ClassSums(2, nll=4.0 + index % 3, bytes=6)},
        )
        for index in range(40)
    ]
    signatures = {"text": "ppl|x", "perplexity/view/sums": "ppl|x|view:ab"}
    results = evaluate(Evidence(tuple(texts)), context(views=views, slices=("fees",), signatures=signatures))
    found = {(item.name, item.slice): item for item in results}
    nll = sum(text.views["sums"].nll for text in texts)
    assert found["perplexity/view/sums", None].value == pytest.approx(np.exp(nll / 80))
    assert found["perplexity/view/sums", None].n == 80
    assert found["perplexity/view/sums", None].details["token_share"] == 0.2
    assert found["perplexity/view/sums", None].signature == "ppl|x|view:ab"
    assert found["perplexity/view/sums", "fees"].n == 20
    assert found["perplexity/view/fees", None].value == pytest.approx(np.exp(2.1))
    assert found["perplexity/view/fees", None].clusters == 10
    assert found["perplexity/view/none", None].value is None
    assert found["perplexity/view/none", None].reason == "no token of the texts belongs to it"
    # The partition is untouched.
    assert found["perplexity/token", None].n == sum(
        found[f"perplexity/{name}", None].n for name in ("head", "oov", "long_tail")
    )


def test_digests_name_what_selects(tmp_path):
    (tmp_path / "mine.py").write_text("def find(text):\n    return []\nvalue = 3\n")
    digests = {
        view_setup(view, tmp_path)[0].digest
        for view in (
            View(name="a", regex="x"),
            View(name="a", regex="y"),
            View(name="a", tag="x"),
            View(name="a", callable="mine:find"),
        )
    }
    assert len(digests) == 4
    before = view_setup(View(name="a", callable="mine:find"), tmp_path)[0].digest
    (tmp_path / "mine.py").write_text("def find(text):\n    return [(0, 1)]\nvalue = 3\n")
    assert view_setup(View(name="a", callable="mine:find"), tmp_path)[0].digest != before
    with pytest.raises(InputError, match="a function of a text is needed"):
        view_setup(View(name="a", callable="mine:value"), tmp_path)
