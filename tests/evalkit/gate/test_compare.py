"""Pairing and paired differences."""

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from evalkit.errors import InputError
from evalkit.gate.compare import _widened, compare
from evalkit.gate.comparison import Comparison, PairCounts, read_comparison
from evalkit.gate.pairing import pair
from evalkit.metrics.context import MetricContext
from evalkit.metrics.evaluate import build_estimators, evaluate
from evalkit.metrics.registry import spec_for
from evalkit.runs.evidence import Evidence
from evalkit.runs.results_io import Results
from evalkit.statistics.paired import PairedChange, paired_change
from tests.evalkit.fake_run import (
    BASELINE,
    CANDIDATE,
    context_for,
    interval,
    metric,
    random_evidence,
    results,
)

WORSE, BETTER = (
    random_evidence(1, texts=40, dialogues=12, worse=0.3),
    random_evidence(1, texts=40, dialogues=12),
)
CONTEXT = context_for(BETTER)


NAMES = frozenset(
    [
        "perplexity/token",
        "perplexity/head",
        "perplexity/domain",
        "rate/oov",
        "dialogue/consistency",
        "dialogue/satisfaction",
        "dialogue/pass_hat_k",
    ]
)


def measured(evidence: Evidence, digest: str, context: MetricContext = CONTEXT) -> Results:
    """Values alone, and of few metrics: the interval of either model has no part in a comparison."""
    found = [
        metric(
            named.name,
            None if named.estimator is None else named.estimator.value,
            k=named.k,
            slice=named.slice,
            signature=context.signatures[spec_for(named.name).family],
        )
        for named in build_estimators(evidence, context)
        if named.name in NAMES
    ]
    return results(found, evidence, digest)


def run(candidate: Evidence, baseline: Evidence, context: MetricContext = CONTEXT) -> Comparison:
    return compare(
        candidate,
        baseline,
        context,
        measured(candidate, CANDIDATE, context),
        measured(baseline, BASELINE, context),
    )


@pytest.fixture(scope="module")
def whole() -> Comparison:
    return run(WORSE, BETTER)


def test_changes_of_perplexity(whole: Comparison) -> None:
    found = whole.find("perplexity/token")
    assert found is not None and found.candidate is not None and found.baseline is not None
    ours, theirs = measured(WORSE, CANDIDATE), measured(BETTER, BASELINE)
    ppl = (ours.find("perplexity/token"), theirs.find("perplexity/token"))
    assert ppl[0] is not None and ppl[1] is not None
    assert (found.candidate, found.baseline) == (ppl[0].value, ppl[1].value)
    assert found.absolute.value == pytest.approx(found.candidate - found.baseline)
    assert found.relative.value == pytest.approx((found.candidate - found.baseline) / found.baseline)
    assert found.relative.bounds is not None and found.relative.interval is not None
    assert found.relative.bounds.low is not None and found.relative.interval.low is not None
    assert found.relative.interval.low < found.relative.bounds.low < found.relative.value
    assert (found.relative.bounds.sides, found.relative.interval.sides) == (1, 2)
    assert (found.coverage, found.clusters) == (1.0, 40)


def test_pairing_makes_the_interval_narrow(whole: Comparison) -> None:
    """Both models find the same texts hard: the difference varies far less than either value."""
    found = whole.find("perplexity/token")
    own = next(item for item in evaluate(WORSE, CONTEXT) if item.name == "perplexity/token")
    assert found is not None and own.interval is not None
    assert found.absolute.interval is not None and found.absolute.interval.low is not None
    assert found.absolute.interval.high is not None
    assert own.interval.high is not None and own.interval.low is not None
    paired = found.absolute.interval.high - found.absolute.interval.low
    assert paired < 0.6 * (own.interval.high - own.interval.low)


def test_order_of_the_records_does_not_matter(whole: Comparison) -> None:
    random = Random(5)
    shuffled = [
        Evidence(
            tuple(random.sample(evidence.samples, len(evidence.samples))),
            tuple(random.sample(evidence.turns, len(evidence.turns))),
        )
        for evidence in (WORSE, BETTER)
    ]
    assert run(shuffled[0], shuffled[1]).to_bytes() == whole.to_bytes()


def test_round_trip(whole: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    path.write_bytes(whole.to_bytes())
    again = read_comparison(path)
    assert again.to_bytes() == whole.to_bytes()
    assert json.loads(path.read_bytes())["schema"] == "evalkit.comparison/1"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("schema", "evalkit.comparison/9", "schema"),
        ("baseline_complete", None, "baseline_complete"),
        ("pairs", {"text": {"candidate": 1}}, "baseline: is missing"),
        ("metrics", [{}], "metrics"),
    ],
)
def test_reading_is_strict(whole: Comparison, tmp_path: Path, field: str, value: object, says: str) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps({**whole.to_dict(), field: value}), encoding="utf-8")
    with pytest.raises(InputError, match=says):
        read_comparison(path)


def without(evidence: Evidence, sample_id: str, **fields: object) -> Evidence:
    """The evidence with one text changed, or dropped if nothing is given."""
    samples = [
        replace(sample, **fields) if sample.sample_id == sample_id else sample  # type: ignore[arg-type]
        for sample in evidence.samples
        if fields or sample.sample_id != sample_id
    ]
    return Evidence(tuple(samples), evidence.turns)


@pytest.mark.parametrize(
    ("fields", "planned"),
    [
        ({}, 40),  # dropped
        ({"status": "error", "reason": "engine died"}, 40),
        ({"status": "truncated"}, 40),
        ({"digest": "another text"}, 40),
        ({"cluster": "another cluster"}, 40),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_a_sample_that_one_side_lacks_leaves_both(fields: dict[str, object], planned: int, side: int) -> None:
    sides = [WORSE, BETTER]
    sides[side] = without(sides[side], "t003", **fields)
    pairing = pair(sides[0], sides[1])
    counts = pairing.counts("text")
    assert (counts.paired, counts.planned) == (39, planned)
    assert len(pairing.candidate.samples) == len(pairing.baseline.samples) == 79
    found = run(sides[0], sides[1]).find("perplexity/token")
    assert found is not None
    assert found.coverage == pytest.approx(39 / 40)
    expected = measured(without(BETTER, "t003"), BASELINE).find("perplexity/token")
    assert expected is not None and found.baseline == expected.value


def test_a_trial_with_an_infrastructure_fault_leaves_both() -> None:
    turns = list(WORSE.turns)
    turns[4] = replace(turns[4], status="infrastructure_fault", reason="sandbox gone")
    pairing = pair(Evidence(WORSE.samples, tuple(turns)), BETTER, CONTEXT.dialogues)
    assert pairing.counts("turn").paired == 35
    assert pairing.counts("turn").planned == 36
    lost = (turns[4].dialogue_id, turns[4].trial)
    assert all((turn.dialogue_id, turn.trial) != lost for turn in pairing.baseline.turns)


def test_a_model_fault_stays_in_the_pair() -> None:
    turns = list(WORSE.turns)
    turns[4] = replace(turns[4], status="model_fault", reason="empty answer")
    assert pair(Evidence(WORSE.samples, tuple(turns)), BETTER).counts("turn").paired == 36


def test_a_dialogue_that_ended_early_is_paired_as_far_as_it_went() -> None:
    short = Evidence(WORSE.samples, WORSE.turns[:2] + WORSE.turns[3:])
    assert pair(short, BETTER).counts("turn").paired == 36


def test_a_trial_in_which_the_user_said_something_else_is_no_pair() -> None:
    turns = list(WORSE.turns)
    turns[0] = replace(turns[0], user_text="Something else.")
    assert pair(Evidence(WORSE.samples, tuple(turns)), BETTER).counts("turn").paired == 35


def test_planned_dialogues_that_nobody_ran_lower_the_coverage() -> None:
    assert CONTEXT.dialogues is not None
    more = replace(CONTEXT.dialogues, dialogue_ids=(*CONTEXT.dialogues.dialogue_ids, "unrun"))
    pairing = pair(WORSE, BETTER, more)
    assert pairing.coverage(("turn",), None) == pytest.approx(36 / 39)
    copies = replace(more, varies=False)
    assert pair(WORSE, BETTER, copies).coverage(("turn",), None) == pytest.approx(36 / 37)


def test_coverage_within_a_slice() -> None:
    tagged = [
        Evidence(
            tuple(replace(s, tags=["vip"] if s.sample_id in ("t001", "t002") else []) for s in side.samples)
        )
        for side in (WORSE, BETTER)
    ]
    pairing = pair(without(tagged[0], "t001"), tagged[1])
    assert pairing.coverage(("text",), "vip") == 0.5
    assert pairing.coverage(("text",), None) == pytest.approx(39 / 40)
    assert pairing.coverage(("text",), "nobody") is None


@pytest.mark.parametrize("side", [0, 1])
def test_a_sample_recorded_twice_is_an_error(side: int) -> None:
    sides = [WORSE, BETTER]
    sides[side] = Evidence((*sides[side].samples, sides[side].samples[0]), sides[side].turns)
    with pytest.raises(InputError, match="text 't000' is recorded twice"):
        pair(sides[0], sides[1])


def test_a_turn_recorded_twice_is_an_error() -> None:
    twice = Evidence(WORSE.samples, (*WORSE.turns, WORSE.turns[5]))
    with pytest.raises(InputError, match="trial 1 turn 2 is recorded twice"):
        pair(twice, BETTER)


def test_the_same_model_is_not_compared_with_itself() -> None:
    ours = measured(WORSE, CANDIDATE)
    found = compare(WORSE, WORSE, CONTEXT, ours, ours).find("perplexity/token")
    assert found is not None
    assert found.relative.value is None and found.absolute.bounds is None
    assert "same model" in (found.relative.reason or "")


def test_unequal_signatures_are_not_compared() -> None:
    theirs = measured(BETTER, BASELINE)
    changed = replace(theirs, metrics=tuple(replace(item, signature="other") for item in theirs.metrics))
    found = compare(WORSE, BETTER, CONTEXT, measured(WORSE, CANDIDATE), changed).find("perplexity/token")
    assert found is not None
    assert found.relative.value is None
    assert "measured in different ways" in (found.relative.reason or "")


def test_a_metric_without_value_says_why(whole: Comparison) -> None:
    found = whole.find("perplexity/domain")
    assert found is not None
    assert found.relative.value is None
    assert "the candidate has no value: " in (found.relative.reason or "")


def test_metrics_of_one_side_only_are_left_out() -> None:
    theirs = measured(BETTER, BASELINE)
    fewer = replace(theirs, metrics=tuple(item for item in theirs.metrics if item.name != "perplexity/token"))
    together = compare(WORSE, BETTER, CONTEXT, measured(WORSE, CANDIDATE), fewer)
    assert together.find("perplexity/token") is None
    assert together.find("perplexity/head") is not None


def test_a_baseline_of_zero_has_no_relative_change(whole: Comparison) -> None:
    found = whole.find("rate/oov")
    assert found is not None and found.baseline == 0
    assert found.relative.value is None and "baseline is 0" in (found.relative.reason or "")
    assert found.absolute.value is not None


def test_nothing_in_common() -> None:
    other = random_evidence(9, texts=5, dialogues=0)
    renamed = Evidence(
        tuple(replace(s, sample_id=f"x{s.sample_id}", cluster=f"x{s.cluster}") for s in other.samples)
    )
    found = run(renamed, BETTER).find("perplexity/token")
    assert found is not None
    assert found.relative.value is None and found.coverage == 0.0


def test_a_predictors_error_widens_the_change(whole: Comparison) -> None:
    """By as much on either side; relative to the baseline where the change is."""
    found = whole.find("dialogue/satisfaction")
    sides = [
        {named.name: named for named in build_estimators(evidence, CONTEXT)}["dialogue/satisfaction"]
        for evidence in (WORSE, BETTER)
    ]
    widen = sides[0].widen
    assert found is not None and widen > 0 and found.baseline is not None
    assert sides[0].estimator is not None and sides[1].estimator is not None
    for kind, difference, by in (
        ("absolute", found.absolute, widen),
        ("relative", found.relative, widen / abs(found.baseline)),
    ):
        plain = paired_change(sides[0].estimator, sides[1].estimator, kind, 0.95, CONTEXT.seed)  # type: ignore[arg-type]
        for wide, narrow in ((difference.interval, plain.interval), (difference.bounds, plain.bounds)):
            if narrow is None:
                assert wide is None
                continue
            assert wide is not None and None not in (wide.low, wide.high, narrow.low, narrow.high)
            assert wide == replace(narrow, low=narrow.low - by, high=narrow.high + by)  # type: ignore[operator]


def test_widening() -> None:
    plain = PairedChange(
        "absolute", 0.5, None, 1.5, 1.0, 10, 10, interval(0.25, 0.75), interval(0.375, None, 1)
    )
    wide = _widened(plain, 0.125)
    assert (wide.interval, wide.bounds) == (interval(0.125, 0.875), interval(0.25, None, 1))
    assert _widened(plain, 0) == plain
    unknown = replace(plain, interval=interval(None, 0.75), bounds=None)
    assert (_widened(unknown, 0.125).interval, _widened(unknown, 0.125).bounds) == (
        interval(None, 0.875),
        None,
    )
    relative = replace(plain, kind="relative", baseline=-0.5)
    assert _widened(relative, 0.125).interval == interval(0.0, 1.0)
    assert _widened(replace(plain, baseline=None), 0.125).interval == plain.interval
    nothing = _widened(replace(relative, baseline=0.0), 0.125).interval
    assert nothing is not None and (nothing.low, nothing.high) == (-math.inf, math.inf)


def test_every_field_of_a_comparison(whole: Comparison) -> None:
    ours, theirs = measured(WORSE, CANDIDATE), replace(measured(BETTER, BASELINE), complete=False)
    found = compare(WORSE, BETTER, CONTEXT, ours, theirs)
    assert (found.run_id, found.plan_sha256) == (ours.run_id, ours.plan_sha256)
    assert (found.model_digest, found.baseline_model_digest) == (CANDIDATE, BASELINE)
    assert (found.baseline_complete, found.baseline_counts) == (False, theirs.counts)
    assert found.pairs == {
        "text": PairCounts(40, 40, 40, 40),
        "risk": PairCounts(40, 40, 40, 40),
        "turn": PairCounts(36, 36, 36, 36),
    }
    one = found.find("perplexity/head")
    own = ours.find("perplexity/head")
    assert one is not None and own is not None
    assert (one.unit, one.direction, one.action, one.signature) == (
        own.unit,
        own.direction,
        own.action,
        own.signature,
    )
    assert one.baseline_signature == own.signature
    assert one.n == own.n or one.n == sum(s.classes["head"].tokens for s in WORSE.samples if s.kind == "text")
    three = found.find("dialogue/consistency")
    assert three is not None and (three.clusters, three.k, three.slice) == (12, None, None)


@pytest.mark.parametrize(
    ("side", "says"),
    [(0, "the candidate has no value: no text was scored"), (1, "the baseline has no value: not measured")],
)
def test_reasons_why_there_is_no_change(side: int, says: str) -> None:
    sides = [measured(WORSE, CANDIDATE), measured(BETTER, BASELINE)]
    gone = metric("perplexity/token", None, reason=says.partition(": ")[2])
    sides[side] = replace(
        sides[side], metrics=tuple(gone if m.name == gone.name else m for m in sides[side].metrics)
    )
    found = compare(WORSE, BETTER, CONTEXT, *sides).find("perplexity/token")
    assert found is not None and found.relative.reason == found.absolute.reason == says
    assert (found.candidate, found.baseline, found.n, found.clusters) == (None, None, 0, 0)


def test_reasons_in_full() -> None:
    ours, theirs = measured(WORSE, CANDIDATE), measured(BETTER, BASELINE)
    changed = replace(theirs, metrics=tuple(replace(item, signature="other") for item in theirs.metrics))
    found = compare(WORSE, BETTER, CONTEXT, ours, changed).find("perplexity/token")
    assert found is not None
    assert found.relative.reason == f"measured in different ways: {found.signature} and other"
    same = compare(WORSE, WORSE, CONTEXT, ours, ours).find("perplexity/token")
    assert same is not None
    assert same.relative.reason == "candidate and baseline are the same model (equal model_digest)"
    # Results that speak of a metric which the paired samples don't give.
    strange = replace(metric("perplexity/token", 5.0, 4.0, 6.0), name="perplexity/vip")
    both = [replace(side, metrics=(*side.metrics, strange)) for side in (ours, theirs)]
    lost = compare(WORSE, BETTER, CONTEXT, *both).find("perplexity/vip")
    assert lost is not None and lost.coverage == 1.0
    assert lost.relative.reason == "the candidate has no value: not measured on the paired samples"


@pytest.mark.parametrize("side", [0, 1])
def test_damaged_evidence_is_named_in_full(side: int) -> None:
    sides = [WORSE, BETTER]
    sides[side] = Evidence((*sides[side].samples, sides[side].samples[0]), sides[side].turns)
    with pytest.raises(InputError) as caught:
        pair(sides[0], sides[1])
    assert str(caught.value) == "text 't000' is recorded twice; the evidence is damaged"
    sides[side] = Evidence(WORSE.samples, (*WORSE.turns, WORSE.turns[5]))
    with pytest.raises(InputError) as caught:
        pair(sides[0], sides[1])
    assert str(caught.value) == (
        "dialogue 'lost_card_en_000' trial 1 turn 2 is recorded twice; the evidence is damaged"
    )


def test_counts_of_each_side() -> None:
    ours = without(without(WORSE, "t001"), "t002", status="error", reason="gone")
    pairing = pair(ours, BETTER)
    assert pairing.counts("text") == PairCounts(candidate=38, baseline=40, paired=38, planned=40)
    assert pairing.counts("risk") == PairCounts(40, 40, 40, 40)
    assert not {"t001", "t002"} & {sample.sample_id for sample in pairing.candidate.samples}
    assert "t001" not in {sample.sample_id for sample in pairing.baseline.samples if sample.kind == "text"}


def test_tags_of_either_side_count() -> None:
    tagged = without(WORSE, "t003", tags=["vip"])
    other = without(BETTER, "t003", tags=["gold"])
    pairing = pair(tagged, other)
    assert (pairing.coverage(("text",), "vip"), pairing.coverage(("text",), "gold")) == (1.0, 1.0)


def test_parts_and_lengths_must_agree() -> None:
    moved = without(WORSE, "r001", part="calibration")
    assert pair(moved, BETTER).counts("risk").paired == 39
    turns = [replace(turn, dialogue_turns=4) if turn.trial == 0 else turn for turn in WORSE.turns]
    assert pair(Evidence(WORSE.samples, tuple(turns)), BETTER).counts("turn").paired == 24


def test_trials_without_variation_are_planned_once() -> None:
    assert CONTEXT.dialogues is not None
    some = replace(CONTEXT.dialogues, unvaried=("lost_card_en_000",))
    few = Evidence(WORSE.samples, tuple(t for t in WORSE.turns if t.trial == 0))
    theirs = Evidence(BETTER.samples, tuple(t for t in BETTER.turns if t.trial == 0))
    assert pair(few, theirs, some).counts("turn") == PairCounts(12, 12, 12, 34)
    twice = replace(CONTEXT.dialogues, repeated={"lost_card_en_000": 2})
    assert pair(few, theirs, twice).counts("turn") == PairCounts(12, 12, 12, 35)
    assert pair(few, theirs, replace(some, varies=False)).counts("turn") == PairCounts(12, 12, 12, 12)
    assert pair(few, theirs).counts("turn") == PairCounts(12, 12, 12, 12)


def test_the_plan_of_the_dialogues_is_heeded() -> None:
    assert CONTEXT.dialogues is not None
    more = replace(CONTEXT.dialogues, dialogue_ids=(*CONTEXT.dialogues.dialogue_ids, "unrun"))
    more = replace(more, turns={**CONTEXT.dialogues.turns, "unrun": 3})
    assert run(WORSE, BETTER, replace(CONTEXT, dialogues=more)).pairs["turn"].planned == 39


def test_changes_keep_their_k_and_slice(whole: Comparison) -> None:
    three = whole.find("dialogue/pass_hat_k", k=3)
    assert three is not None and three.candidate is not None and three.candidate < 1
    tagged = [
        Evidence(tuple(replace(s, tags=["vip"] if s.sample_id < "t020" else []) for s in side.samples))
        for side in (WORSE, BETTER)
    ]
    context = replace(CONTEXT, slices=("vip",), dialogues=None)
    sliced = run(tagged[0], tagged[1], context).find("perplexity/token", slice="vip")
    assert sliced is not None and sliced.clusters == 20 and sliced.relative.bounds is not None


def test_coverage_and_missing_intervals_of_a_slice() -> None:
    tagged = [
        Evidence(tuple(replace(s, tags=["vip"] if s.sample_id < "t005" else []) for s in side.samples))
        for side in (WORSE, BETTER)
    ]
    context = replace(CONTEXT, slices=("vip",), dialogues=None)
    found = run(without(tagged[0], "t001"), tagged[1], context)
    sliced, every = found.find("perplexity/token", slice="vip"), found.find("perplexity/token")
    assert sliced is not None and every is not None
    assert (sliced.coverage, every.coverage) == (pytest.approx(4 / 5), pytest.approx(39 / 40))
    assert sliced.relative.interval_reason == "only 4 independent clusters; an interval needs 10"
    assert every.relative.interval_reason is None
