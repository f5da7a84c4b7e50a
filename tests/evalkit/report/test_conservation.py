"""Conservation stands in each report and on the terminal, in the same words."""

from dataclasses import replace

import pytest

from evalkit.output import show_conservation
from evalkit.report.conservation import conservation_sentence
from evalkit.report.html import render_html
from evalkit.report.markdown import escape, render_markdown
from evalkit.report.view import build_view
from evalkit.runs.results_io import Conservation
from tests.evalkit import fake_run

WHOLE = Conservation(texts=1200, ok=1200, tokens_encoded=91200, tokens_scored=91200, bytes=9, bytes_scored=9)


def test_the_sentence_counts_what_was_scored_and_what_was_not():
    assert conservation_sentence(WHOLE) == (
        "1\u202f200 of 1\u202f200 texts scored: 91\u202f200 tokens and 9 bytes, each exactly once; none left out."
    )
    part = replace(
        WHOLE, ok=1197, error=2, truncated=1, tokens_scored=90003, tokens_unconditioned=1197, bytes=12
    )
    assert conservation_sentence(part) == (
        "1\u202f197 of 1\u202f200 texts scored: 90\u202f003 tokens and 9 bytes, each exactly once; 1\u202f197 first "
        "tokens (3 bytes) have nothing before them and are counted, not scored; 2 in error, 1 truncated."
    )
    assert conservation_sentence(Conservation()) == ""


def test_every_report_prints_it(capsys: pytest.CaptureFixture[str]):
    source = fake_run.source()
    sentences = [
        conservation_sentence(item.conservation) for item in (source.results, source.baseline_results)
    ]
    view = build_view(source)
    html, markdown = render_html(view), render_markdown(view)
    for side, sentence in zip(("Candidate", "Baseline"), sentences, strict=True):
        assert "each exactly once" in sentence
        assert f"<strong>{side}:</strong> {sentence}" in html
        assert f"{side}: {escape(sentence)}" in markdown
    show_conservation(source.results)
    assert capsys.readouterr().out == sentences[0] + "\n"


def test_a_run_without_texts_says_nothing_of_them():
    source = replace(fake_run.source(with_baseline=False))
    empty = replace(source, results=replace(source.results, conservation=Conservation()))
    assert "each exactly once" not in render_html(build_view(empty)) + render_markdown(build_view(empty))
