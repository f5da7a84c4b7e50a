"""Reports: what they say, and that nothing in the data can break or deceive them."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from evalkit.report.html import render_html
from evalkit.report.junit import render_junit
from evalkit.report.language import ENGLISH
from evalkit.report.markdown import escape, render_markdown
from evalkit.report.source import ReportSource
from evalkit.report.view import ReportView, build_view
from evalkit.runs.evidence import Evidence
from tests.evalkit import fake_run

HOSTILE = "<script>alert(1)</script>\u202e\x00|`*_[x](http://e.example)\ud800 @all &amp; \"'"


@pytest.fixture(scope="module")
def view() -> ReportView:
    return build_view(fake_run.source())


def hostile_source() -> ReportSource:
    """Every text of the run replaced by one that tries to break out."""
    base = fake_run.source()
    samples = tuple(
        fake_run.text(f"{HOSTILE}{index}", HOSTILE, [(0, 8, -9.0)], tags=[HOSTILE]) for index in range(2)
    )
    turns = tuple(
        replace(
            turn,
            user_text=HOSTILE,
            text=HOSTILE,
            intent=HOSTILE,
            tags=[HOSTILE],
            reason=HOSTILE,
            expectations=[
                replace(check, kind=HOSTILE, want=HOSTILE, got=HOSTILE) for check in turn.expectations
            ],
        )
        for turn in base.candidate.turns
    )
    evidence = Evidence(samples, turns)
    plan = {
        **base.plan,
        "scenario": {"name": HOSTILE},
        "candidate": {"name": HOSTILE, "model_digest": HOSTILE},
    }
    assert base.verdict is not None
    rules = tuple(replace(rule, reason=HOSTILE, action=HOSTILE) for rule in base.verdict.rules)
    metrics = tuple(
        replace(metric, value=None, reason=HOSTILE, interval=None) for metric in base.results.metrics
    )
    return replace(
        base,
        plan=plan,
        candidate=evidence,
        verdict=replace(base.verdict, rules=rules, reason=HOSTILE),
        results=replace(base.results, metrics=metrics, run_id=HOSTILE),
    )


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that they nest."""

    VOID = frozenset({"meta", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> Tags:
    parser = Tags()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_the_verdict_comes_first_then_the_rules_failed_ones_first(view: ReportView) -> None:
    page = render_html(view)
    assert page.index('id="verdict"') < page.index('id="rules"') < page.index('id="figures"')
    assert page.index('id="samples"') < page.index('id="dialogues"') < page.index('id="evidence"')
    assert [rule.outcome for rule in view.rules] == ["FAIL"] * 2 + ["INCONCLUSIVE"] * 2 + ["PASS"] * 4
    assert "<title>FAIL: banking_support</title>" in page


def test_a_rule_says_value_bound_threshold_and_what_to_do(view: ReportView) -> None:
    rule = view.rules[0]
    assert (rule.name, rule.demand) == ("dialogue/pass_hat_k k=3 [multi_turn]", "at least 80 %")
    assert (rule.value, rule.bound, rule.interval, rule.n, rule.coverage) == (
        "55 %",
        "40 %",
        "40 % … 69 %",
        "40",
        "100 %",
    )
    assert rule.action.startswith("below 0.8")
    assert rule.strip is not None and "threshold 80 %" in rule.strip.svg(ENGLISH)


def test_demands_are_spelled_out(view: ReportView) -> None:
    demands = {rule.name: rule.demand for rule in view.rules}
    assert demands["perplexity/domain"] == "relative increase at most 2 %"
    assert demands["latency/turn_overhead"] == "at least 99 % within 15 ms"
    assert demands["risk/false_reject_rate"] == "at most 10 %"


def test_an_allowed_change_of_a_share_is_in_percentage_points() -> None:
    """0.01 of a share is one percentage point; `1 %` would read as a hundredth of the baseline."""
    rules = [{"metric": "dialogue/consistency", "change": {"max_decrease": 0.01}}]
    assert build_view(fake_run.source(rules=rules)).rules[0].demand == "decrease at most 1 pp"


def test_metrics_show_both_models_with_intervals(view: ReportView) -> None:
    rows = {row.name: row for section in view.sections for block in section.blocks for row in block.rows}
    row = rows["perplexity/long_tail"]
    assert (row.value, row.interval, row.n, row.clusters) == ("41.2", "35.9 … 47.9", "402", "228")
    assert row.change is not None
    assert (row.baseline, row.change.value, row.change.word) == ("43.26", "−3.1 %", "better")
    assert rows["latency/first_token"].notes == ("p95 9.84 ms", "p99 15.99 ms", "99.5 % within 15 ms")


def test_every_metric_of_the_results_is_shown(view: ReportView) -> None:
    rows = [row.name for section in view.sections for block in section.blocks for row in block.rows]
    assert len(rows) == len(fake_run.metrics())


def test_worst_samples_come_worst_first_with_marked_tokens(view: ReportView) -> None:
    assert [sample.sample_id for sample in view.samples] == ["lost_en_002", "zh_003", "fees_en_001"]
    marked = [segment.text for segment in view.samples[0].segments if segment.note]
    assert marked == ["block", " Zdeňka", "at"]
    assert "".join(segment.text for segment in view.samples[1].segments) == "请问透支的年利率是多少？"
    assert [segment.text for segment in view.samples[1].segments if segment.level == 3] == ["透支"]


def test_dialogues_failures_first_both_models_side_by_side(view: ReportView) -> None:
    section = view.dialogues
    assert section is not None
    assert section.counts == (("failed", 7), ("passed", 13))
    assert section.left_out == 5
    first = section.shown[0]
    assert (first.outcome, first.baseline_outcome, first.summary) == (
        "failed",
        "passed",
        "1 of 3 trials passed",
    )
    assert first.failing == "turn 3: recalls Maria"
    last = first.turns[2]
    assert last.candidate is not None and last.baseline is not None
    assert last.candidate.failed and not last.baseline.failed
    assert "David" in last.candidate.text and "Maria" in last.baseline.text
    assert [check.passed for check in last.candidate.checks] == [False]


def test_the_page_is_well_formed_and_accessible(view: ReportView) -> None:
    parser = parsed(render_html(view))
    assert all(attrs.get("scope") for tag, attrs in parser.seen if tag == "th")
    for tag, attrs in parser.seen:
        if tag == "svg":
            assert attrs.get("aria-label") or attrs.get("aria-hidden") == "true"
        if tag == "html":
            assert attrs["lang"] == "en"
    ids = [attrs["id"] for _, attrs in parser.seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = {str(attrs["href"])[1:] for tag, attrs in parser.seen if tag == "a"}
    assert links <= set(ids)


def test_the_page_needs_no_network_and_runs_no_script(view: ReportView) -> None:
    page = render_html(view)
    parser = parsed(page)
    assert not {tag for tag, _ in parser.seen} & {"script", "link", "img", "iframe", "object", "form"}
    assert not any(name.startswith("on") or name == "src" for _, attrs in parser.seen for name in attrs)
    assert "http://" not in page and "https://" not in page
    assert "url(" not in page and "@import" not in page
    assert "default-src 'none'" in page


def test_light_dark_phone_and_print_have_their_styles(view: ReportView) -> None:
    page = render_html(view)
    for query in ("prefers-color-scheme: dark", "screen and (max-width: 760px)", "@media print"):
        assert query in page


def test_hostile_data_stays_text() -> None:
    page = render_html(build_view(hostile_source()))
    parser = parsed(page)
    assert "script" not in {tag for tag, _ in parser.seen}
    assert "<script" not in page
    for char in ("\u202e", "\x00", "\ud800"):
        assert char not in page
    assert "⟨U+202E⟩" in page
    page.encode("utf-8")


def test_hostile_data_in_markdown() -> None:
    page = render_markdown(build_view(hostile_source()))
    assert "<script" not in page
    assert "@all" not in page
    assert "](http" not in page
    table = [line for line in page.splitlines() if line.startswith("| ")]
    assert table
    for line in table:
        assert len(re.findall(r"(?<!\\)\|", line)) in (6, 8)
    page.encode("utf-8")


def test_hostile_data_in_junit() -> None:
    root = ElementTree.fromstring(render_junit(build_view(hostile_source())).encode("utf-8"))
    assert len(root.findall(".//testcase")) == 8


@pytest.mark.parametrize(
    ("given", "escaped"),
    [
        ("a|b", "a\\|b"),
        ("<b>", "&lt;b\\>"),
        ("@team", "&\\#64;team"),
        ("one\ntwo", "one two"),
        ("1. item", "1\\. item"),
        ("a&b", "a&amp;b"),
    ],
)
def test_markdown_escapes(given: str, escaped: str) -> None:
    assert escape(given) == escaped


def junit(source: ReportSource) -> ElementTree.Element:
    return ElementTree.fromstring(render_junit(build_view(source)).encode("utf-8"))


def test_junit_one_case_a_rule() -> None:
    root = junit(fake_run.source())
    assert root.attrib == {
        "name": "banking_support",
        "tests": "8",
        "failures": "2",
        "errors": "1",
        "skipped": "0",
    }
    cases = root.findall(".//testcase")
    assert [case[0].tag for case in cases] == ["failure"] * 2 + ["error", "system-out"] + ["system-out"] * 4
    assert "WARNING INCONCLUSIVE" in (cases[3][0].text or "")


def test_junit_shows_rules_that_were_not_applied_as_skipped() -> None:
    root = junit(fake_run.source(with_baseline=False, first_release=True))
    assert root.attrib["skipped"] == "1"
    skipped = root.find(".//skipped")
    assert skipped is not None and "first release" in skipped.attrib["message"]


def test_junit_is_red_where_no_rule_was_applied() -> None:
    rules: list[dict[str, Any]] = [{"metric": "perplexity/domain", "change": {"max_relative_increase": 0.02}}]
    root = junit(fake_run.source(with_baseline=False, rules=rules, first_release=True))
    assert (root.attrib["errors"], root.attrib["tests"]) == ("1", "2")
    warnings = [{**rule, "severity": "warn"} for rule in fake_run.RULES]
    assert junit(fake_run.source(rules=warnings)).attrib["errors"] == "1"


def test_a_first_release_is_said_loudly() -> None:
    view = build_view(fake_run.source(with_baseline=False, first_release=True))
    for page in (render_html(view), render_markdown(view)):
        assert "First release" in page
        assert "NOT APPLIED" in page
    assert not view.has_baseline and view.changes == ()


def test_a_run_without_gate_is_not_judged() -> None:
    view = build_view(replace(fake_run.source(), verdict=None))
    assert "NOT JUDGED" in render_html(view)
    assert "NOT JUDGED" in render_markdown(view)
    root = ElementTree.fromstring(render_junit(view).encode("utf-8"))
    assert root.attrib["tests"] == "0"


def test_texts_alone_make_a_report() -> None:
    base = fake_run.source(with_baseline=False)
    alone = replace(
        base,
        context=replace(base.context, dialogues=None),
        candidate=Evidence(base.candidate.samples),
        verdict=None,
        plan={"run_id": "r", "schema": base.plan["schema"]},
    )
    view = build_view(alone)
    assert view.dialogues is None
    assert view.title == "r"
    parsed(render_html(view))


def test_an_empty_run_makes_a_report() -> None:
    base = fake_run.source(with_baseline=False)
    empty = replace(
        base,
        candidate=Evidence(),
        results=fake_run.results([], Evidence()),
        verdict=None,
        plan={"run_id": "r"},
    )
    view = build_view(empty)
    parsed(render_html(view))
    render_markdown(view)
    render_junit(view)


def test_equal_runs_give_equal_bytes() -> None:
    pages = [render(build_view(fake_run.source())) for render in (render_html, render_markdown, render_junit)]
    again = [render(build_view(fake_run.source())) for render in (render_html, render_markdown, render_junit)]
    assert pages == again
