"""What a comparison says where one side has less, a slice is special, or a result claims what the samples don't give.

Through `compare` alone, so that the way it pairs may change: only a few metrics are asked, which keeps it fast.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from evalkit.gate.compare import compare
from evalkit.gate.comparison import ComparedMetric, Comparison, PairCounts
from evalkit.metrics.context import MetricContext, ResampleSetup
from evalkit.metrics.result import Interval, MetricResult
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import TurnRecord
from tests.evalkit.fake_run import (
    BASELINE,
    CANDIDATE,
    context_for,
    dialogue,
    metric,
    random_evidence,
    results,
)

OURS = random_evidence(1, texts=20, dialogues=12, worse=0.3)
THEIRS = random_evidence(1, texts=20, dialogues=12)
CONTEXT = context_for(THEIRS)
TEXTS = replace(CONTEXT, dialogues=None)
TOKEN = "perplexity/token"


def both(asked: MetricResult, ours: Evidence, theirs: Evidence, context: MetricContext) -> Comparison:
    """A comparison of two models whose results speak of one metric."""
    return compare(
        ours, theirs, context, results([asked], ours, CANDIDATE), results([asked], theirs, BASELINE)
    )


def one(asked: MetricResult, ours: Evidence, theirs: Evidence, context: MetricContext) -> ComparedMetric:
    (found,) = both(asked, ours, theirs, context).metrics
    return found


def texts(evidence: Evidence, tag: str | None = None, below: str = "", drop: str | None = None) -> Evidence:
    """The texts alone, some of them tagged, one of them dropped."""
    return Evidence(
        tuple(
            replace(sample, tags=[tag] if tag is not None and sample.sample_id < below else [])
            for sample in evidence.samples
            if sample.kind == "text" and sample.sample_id != drop
        )
    )


def with_turns(evidence: Evidence, change: Callable[[TurnRecord], TurnRecord]) -> Evidence:
    return Evidence(evidence.samples, tuple(change(turn) for turn in evidence.turns))


@pytest.mark.parametrize("side", [0, 1])
def test_the_side_that_covers_less_counts(side: int) -> None:
    """Of one dialogue in twelve a model doesn't tell what it reused."""
    sides = [OURS, THEIRS]
    sides[side] = with_turns(
        sides[side],
        lambda turn: replace(turn, prompt_tokens=None) if turn.dialogue_id.endswith("003") else turn,
    )
    found = one(metric("cache/reuse_ratio", 0.8, 0.7, 0.9), sides[0], sides[1], CONTEXT)
    assert found.coverage == pytest.approx(11 / 12)
    assert found.absolute.value == 0


def test_a_slice_that_nobody_has_covers_nothing() -> None:
    found = one(metric(TOKEN, 5.0, slice="nobody"), texts(OURS), texts(THEIRS), TEXTS)
    assert found.coverage is None
    assert (found.slice, found.relative.reason) == (
        "nobody",
        "the candidate has no value: not measured on the paired samples",
    )


def test_a_figure_that_stands_on_all_is_covered_by_all() -> None:
    """One of 20 texts and one of 36 trials are lost; 20 decisions are whole."""
    lost = with_turns(
        Evidence(tuple(s for s in OURS.samples if s.sample_id != "t001"), OURS.turns),
        lambda turn: (
            replace(turn, status="infrastructure_fault")
            if (turn.dialogue_id[-3:], turn.trial) == ("003", 1)
            else turn
        ),
    )
    asked = replace(metric(TOKEN, 5.0), name="business/loss")
    assert one(asked, lost, THEIRS, CONTEXT).coverage == pytest.approx((19 + 20 + 35) / 76)


WEIGHTS = ResampleSetup({f"t{number:03d}": 1.0 for number in range(20)}, "digest of the target")


def test_reweighted_texts_are_all_texts() -> None:
    """No text carries the tag `resampled`: what is covered is counted over all of them."""
    ours, theirs = texts(OURS, drop="t003"), texts(THEIRS)
    asked = metric(TOKEN, 5.0, slice="resampled")
    found = one(asked, ours, theirs, replace(TEXTS, resample=WEIGHTS))
    assert found.coverage == pytest.approx(19 / 20)
    assert (found.slice, found.clusters) == ("resampled", 19)
    assert found.relative.value is not None and found.relative.bounds is not None


def test_a_slice_beside_reweighted_texts_stays_a_slice() -> None:
    ours, theirs = texts(OURS, "vip", "t010", drop="t003"), texts(THEIRS, "vip", "t010")
    context = replace(TEXTS, resample=WEIGHTS, slices=("vip",))
    found = one(metric(TOKEN, 5.0, slice="vip"), ours, theirs, context)
    assert (found.coverage, found.clusters) == (pytest.approx(9 / 10), 9)
    whole = one(metric(TOKEN, 5.0), ours, theirs, context)
    assert (whole.coverage, whole.clusters) == (pytest.approx(19 / 20), 19)


def test_a_tag_named_like_the_reweighted_texts_is_a_tag() -> None:
    ours, theirs = texts(OURS, "resampled", "t010", drop="t003"), texts(THEIRS, "resampled", "t010")
    context = replace(TEXTS, slices=("resampled",))
    found = one(metric(TOKEN, 5.0, slice="resampled"), ours, theirs, context)
    assert found.coverage == pytest.approx(9 / 10)


def test_the_metrics_own_reason_is_handed_on() -> None:
    """Results that claim a value which the paired samples don't give."""
    asked = replace(metric("risk/auc", 0.5), name="risk/cost")
    found = one(asked, Evidence(OURS.samples), Evidence(THEIRS.samples), TEXTS)
    assert found.relative.reason == found.absolute.reason
    assert found.relative.reason == (
        "the candidate has no value: the scenario declares no cost of wrong decisions (risk.costs)"
    )
    assert (found.candidate, found.n, found.absolute.interval, found.absolute.interval_reason) == (
        None,
        0,
        None,
        None,
    )


def test_a_baseline_of_zero_is_named_as_the_reason() -> None:
    found = one(metric("rate/oov", 0.0), texts(OURS), texts(THEIRS), TEXTS)
    assert (found.candidate, found.baseline, found.absolute.value) == (0.0, 0.0, 0.0)
    assert found.absolute.reason is None
    assert found.relative.reason == (
        "the baseline is 0: a relative change is undefined; use max_increase or max_decrease"
    )


def varied(worse: float) -> Evidence:
    """Dialogues whose satisfaction differs between them, and differently between the models."""
    return with_turns(
        Evidence((), THEIRS.turns),
        lambda turn: replace(turn, satisfaction=4.0 - (int(turn.dialogue_id[-3:]) % 5) * worse),
    )


@pytest.mark.parametrize("error", [0.25, 1.0, 1.5])
def test_a_predictors_error_opens_both_ends_by_as_much(error: float) -> None:
    """For a relative change it is a share of the baseline's value."""
    assert CONTEXT.dialogues is not None
    asked = metric("dialogue/satisfaction", 3.0, 2.5, 3.5)
    found = [
        one(
            asked,
            varied(0.3),
            varied(0.1),
            replace(CONTEXT, dialogues=replace(CONTEXT.dialogues, satisfaction_error=by)),
        )
        for by in (0.0, error)
    ]
    exact, wide = found
    assert exact.baseline is not None and exact.baseline > 1
    for kind, by in (("absolute", error), ("relative", error / exact.baseline)):
        narrow, opened = getattr(exact, kind), getattr(wide, kind)
        assert narrow.value == opened.value and narrow.value is not None
        for before, after in ((narrow.interval, opened.interval), (narrow.bounds, opened.bounds)):
            assert ends(after) == pytest.approx((ends(before)[0] - by, ends(before)[1] + by))
            assert (after.sides, after.method) == (before.sides, before.method)


def ends(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None and interval.low is not None and interval.high is not None
    return interval.low, interval.high


def test_each_k_has_its_own_change() -> None:
    """A third of the dialogues pass once in three trials: pass_hat_1 loses two ninths, pass_hat_3 a third."""
    ours = Evidence(
        (),
        tuple(
            turn
            for number in range(12)
            for trial in range(3)
            for turn in dialogue(
                f"lost_card_en_{number:03d}", trial, recalls=not (number % 3 == 0 and trial > 0)
            )
        ),
    )
    theirs = Evidence((), THEIRS.turns)
    name = "dialogue/pass_hat_k"
    asked = [metric(name, 0.5, k=k) for k in (1, 3)]
    found = compare(ours, theirs, CONTEXT, results(asked, ours, CANDIDATE), results(asked, theirs, BASELINE))
    once, always = found.find(name, k=1), found.find(name, k=3)
    assert once is not None and always is not None
    assert (once.candidate, always.candidate) == (pytest.approx(7 / 9), pytest.approx(2 / 3))
    assert (once.absolute.value, always.absolute.value) == (pytest.approx(-2 / 9), pytest.approx(-1 / 3))


def kept(evidence: Evidence, turns: int) -> Evidence:
    """The first dialogue's first trial ends after so many turns."""
    name = "lost_card_en_000"
    return Evidence(
        (),
        tuple(
            turn
            for turn in evidence.turns
            if (turn.dialogue_id, turn.trial) != (name, 0) or turn.turn_index < turns
        ),
    )


def said(evidence: Evidence, index: int) -> Evidence:
    """The same trial with something else said in one turn."""
    return with_turns(
        evidence,
        lambda turn: (
            replace(turn, user_text="Something else.")
            if (turn.dialogue_id[-3:], turn.trial, turn.turn_index) == ("000", 0, index)
            else turn
        ),
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "paired"),
    [
        (OURS, kept(THEIRS, 2), 36),  # the baseline's ended early
        (kept(OURS, 2), THEIRS, 36),
        (kept(OURS, 1), THEIRS, 36),  # after a single turn
        (said(OURS, 2), kept(THEIRS, 2), 36),  # what differs came after the other's end
        (said(OURS, 1), kept(THEIRS, 2), 35),
        (kept(OURS, 2), said(THEIRS, 2), 36),
        (kept(OURS, 2), said(THEIRS, 0), 35),
        (said(OURS, 2), said(THEIRS, 2), 36),
        (said(OURS, 0), said(THEIRS, 2), 35),
    ],
)
def test_dialogues_are_paired_as_far_as_both_went(ours: Evidence, theirs: Evidence, paired: int) -> None:
    asked = metric("dialogue/consistency", 0.5)
    found = both(asked, Evidence((), ours.turns), Evidence((), theirs.turns), CONTEXT)
    assert found.pairs["turn"] == PairCounts(36, 36, paired, 36)
    assert found.pairs["text"] == PairCounts(0, 0, 0, 0)


def test_a_planned_dialogue_without_a_record_is_in_no_slice() -> None:
    """Its tags aren't known from a record; what the plan knows of them lowers the metric's own coverage."""
    assert CONTEXT.dialogues is not None
    setup = CONTEXT.dialogues
    ids = (*setup.dialogue_ids, "unrun")
    setup = replace(
        setup,
        dialogue_ids=ids,
        turns=dict.fromkeys(ids, 3),
        tags={key: ["multi_turn"] for key in setup.dialogue_ids},
    )
    context = replace(CONTEXT, dialogues=setup, slices=("multi_turn",))
    asked = metric("dialogue/consistency", 0.5, slice="multi_turn")
    theirs = Evidence((), THEIRS.turns)
    assert one(asked, Evidence((), OURS.turns), theirs, context).coverage == 1.0
    aware = replace(setup, tags={key: ["multi_turn"] for key in ids})
    found = one(asked, Evidence((), OURS.turns), theirs, replace(context, dialogues=aware))
    assert found.coverage == pytest.approx(36 / 39)


@pytest.mark.parametrize("status", ["error", "truncated", "skipped"])
def test_texts_that_were_not_scored_keep_their_tags_and_their_plan(status: str) -> None:
    """Lost on one side, the text still counts as planned in its slice."""
    theirs = texts(THEIRS, "vip", "t012")
    ours = Evidence(
        tuple(
            replace(sample, status=status, reason="gone") if sample.sample_id == "t003" else sample  # type: ignore[arg-type]
            for sample in texts(OURS, "vip", "t012").samples
        )
    )
    context = replace(TEXTS, slices=("vip",))
    asked = metric(TOKEN, 5.0, slice="vip")
    found = both(asked, ours, theirs, context)
    assert found.pairs["text"] == PairCounts(19, 20, 19, 20)
    assert found.metrics[0].coverage == pytest.approx(11 / 12)
    assert found.metrics[0].clusters == 11


def test_equal_ids_of_different_kinds_are_different_samples() -> None:
    """A text and a decision may share an id; losing one leaves the other."""

    def renamed(evidence: Evidence) -> Evidence:
        return Evidence(
            tuple(
                replace(s, sample_id=f"s{s.sample_id[1:]}", cluster=f"s{s.sample_id[1:]}")
                for s in evidence.samples
            )
        )

    ours = renamed(OURS)
    ours = Evidence(tuple(s for s in ours.samples if (s.kind, s.sample_id) != ("text", "s003")))
    found = both(metric(TOKEN, 5.0), ours, renamed(THEIRS), TEXTS)
    assert found.pairs["text"] == PairCounts(19, 20, 19, 20)
    assert found.pairs["risk"] == PairCounts(20, 20, 20, 20)
    assert found.metrics[0].clusters == 19


@pytest.mark.parametrize("side", [0, 1])
def test_a_lost_text_takes_no_dialogue_with_it(side: int) -> None:
    """What is cut down to the pairs keeps every other kind of evidence whole."""
    sides = [OURS, THEIRS]
    sides[side] = Evidence(
        tuple(s for s in sides[side].samples if s.kind == "text" and s.sample_id != "t003"), sides[side].turns
    )
    found = one(metric("dialogue/consistency", 0.5), sides[0], sides[1], CONTEXT)
    assert (found.coverage, found.clusters, found.baseline) == (1.0, 12, 1.0)
    assert found.candidate is not None and 0 < found.candidate < 1
