"""Dialogue metrics from hand-made records, each figure computed by hand."""

from typing import Any

import pytest

from evalkit.errors import InputError
from evalkit.metrics.context import DialogueSetup, MetricContext
from evalkit.metrics.dialogue import estimators
from evalkit.metrics.estimators import NamedEstimator
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.result import MetricResult
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ExpectationResult, TurnRecord
from evalkit.statistics.intervals import Question, uncertainty
from tests.support.dialogues import lost_turn, setup, turn


def measure(
    turns: list[TurnRecord], planned: DialogueSetup, **context: Any
) -> dict[tuple[str, Any, Any], NamedEstimator]:
    values: dict[str, Any] = {
        "confidence": 0.95,
        "seed": 1,
        "signatures": {},
        "dialogues": planned,
        "k_values": (1, 2),
    }
    found = estimators(Evidence(turns=tuple(turns)), MetricContext(**{**values, **context}))
    assert len({item.key for item in found}) == len(found)
    return {tuple(item.key): item for item in found}


def value(found: dict[tuple[str, Any, Any], NamedEstimator], name: str, k: int | None = None) -> float | None:
    estimator = found[name, k, None].estimator
    return None if estimator is None else estimator.value


def trials(dialogue_id: str, outcomes: str) -> list[TurnRecord]:
    """One turn a trial: + passed, - failed, ? lost."""
    made = []
    for trial, outcome in enumerate(outcomes):
        made.append(
            lost_turn(dialogue_id, trial)
            if outcome == "?"
            else turn(dialogue_id, trial, passed=outcome == "+")
        )
    return made


def test_without_dialogues_there_is_nothing() -> None:
    assert estimators(Evidence(), MetricContext(0.95, 1, {})) == []


def test_pass_hat_k_is_the_mean_of_the_unbiased_estimates() -> None:
    turns = trials("a", "++--") + trials("b", "++++") + trials("c", "----")
    found = measure(turns, setup(["a", "b", "c"], 4), k_values=(1, 2, 4, 5))
    assert value(found, "dialogue/pass_hat_k", 1) == pytest.approx((0.5 + 1 + 0) / 3)
    assert value(found, "dialogue/pass_hat_k", 2) == pytest.approx((1 / 6 + 1 + 0) / 3)
    assert value(found, "dialogue/pass_hat_k", 4) == pytest.approx(1 / 3)
    assert value(found, "dialogue/pass_hat_k", 5) is None
    assert (
        found["dialogue/pass_hat_k", 5, None].reason == "no dialogue has 5 independent trials with a result"
    )
    assert found["dialogue/pass_hat_k", 1, None].coverage == 1.0
    assert found["dialogue/pass_hat_k", 1, None].details["flaky"] == ["a"]


def test_lost_trials_cost_coverage_and_nothing_else() -> None:
    found = measure(trials("a", "+???") + trials("b", "++++"), setup(["a", "b", "gone"], 4))
    one, two = found["dialogue/pass_hat_k", 1, None], found["dialogue/pass_hat_k", 2, None]
    assert one.estimator is not None and one.estimator.value == 1.0 and one.coverage == pytest.approx(5 / 12)
    assert (
        two.estimator is not None
        and two.estimator.clusters == ("b",)
        and two.coverage == pytest.approx(4 / 12)
    )


def test_a_trial_that_failed_before_it_was_lost_is_a_failure() -> None:
    turns = [turn("a", dialogue_turns=2, passed=False), lost_turn("a", turn_index=1, dialogue_turns=2)]
    found = measure(turns, setup(["a"], turns={"a": 2}))
    assert value(found, "dialogue/pass_hat_k", 1) == 0.0


def test_a_trial_with_turns_that_have_no_record_is_missing() -> None:
    found = measure([turn("a", dialogue_turns=2)], setup(["a"], turns={"a": 2}))
    assert value(found, "dialogue/pass_hat_k", 1) is None
    assert found["dialogue/pass_hat_k", 1, None].coverage == 0.0


def test_copies_count_as_one_and_pass_only_together() -> None:
    turns = trials("a", "+++") + trials("b", "++-")
    found = measure(turns, setup(["a", "b"], 3, varies=False))
    one, two = found["dialogue/pass_hat_k", 1, None], found["dialogue/pass_hat_k", 2, None]
    assert one.estimator is not None and (one.estimator.value, one.estimator.n) == (0.5, 2)
    assert two.estimator is None
    assert (
        two.reason == "nothing varies between trials, so they count as one; k = 2 needs a source of variation"
    )


def test_trials_that_repeat_each_other_count_as_often_as_they_differ() -> None:
    """Two paraphrases in five trials: the first passes, the second doesn't; that isn't three of five."""
    turns = trials("a", "+-+-+") + trials("b", "++++-")
    found = measure(turns, setup(["a", "b"], 5, repeated={"a": 2}), k_values=(1, 2, 3))
    one, two = found["dialogue/pass_hat_k", 1, None], found["dialogue/pass_hat_k", 2, None]
    assert one.estimator is not None and one.estimator.value == pytest.approx((1 / 2 + 4 / 5) / 2)
    assert two.estimator is not None and two.estimator.value == pytest.approx((0 + 6 / 10) / 2)
    assert one.coverage == 1.0 and one.details["trials_planned"] == 7
    three = found["dialogue/pass_hat_k", 3, None]
    assert three.estimator is not None and three.estimator.clusters == ("b",)
    assert three.coverage == pytest.approx(5 / 7)
    # A copy that was lost is no hole while another one of the same words has a result.
    lost = measure(trials("a", "?-+-?") + trials("b", "+++++"), setup(["a", "b"], 5, repeated={"a": 2}))
    assert lost["dialogue/pass_hat_k", 2, None].coverage == 1.0


def test_copies_among_varied_dialogues_have_no_pass_hat_2() -> None:
    turns = trials("a", "+++") + trials("b", "+++")
    found = measure(turns, setup(["a", "b"], 3, unvaried=("b",)))
    two = found["dialogue/pass_hat_k", 2, None]
    assert (
        two.estimator is not None
        and two.estimator.clusters == ("a",)
        and two.coverage == pytest.approx(3 / 4)
    )


@pytest.mark.parametrize(("dialogues", "low"), [(14, 0.8), (59, 0.95)])
def test_all_passed_gives_the_exact_bound(dialogues: int, low: float) -> None:
    names = [f"d{number:02}" for number in range(dialogues)]
    found = measure(
        [record for name in names for record in trials(name, "+++")], setup(names, 3), k_values=(3,)
    )
    estimator = found["dialogue/pass_hat_k", 3, None].estimator
    assert estimator is not None
    answer = uncertainty(Question(estimator, "exact-binomial"), confidence=0.95, seed=1)
    assert answer.bounds is not None and answer.bounds.low is not None
    assert answer.bounds.low == pytest.approx(0.05 ** (1 / dialogues)) and answer.bounds.low > low
    assert answer.bounds.high == 1.0


def test_a_record_that_is_there_twice_is_refused() -> None:
    with pytest.raises(InputError, match="dialogue 'a', trial 0, turn 0: recorded twice"):
        measure([turn("a"), turn("a")], setup(["a"]))


def test_a_slice_holds_the_dialogues_of_a_tag() -> None:
    turns = trials("a", "+") + trials("b", "-")
    planned = setup(["a", "b"], tags={"a": ["cards"], "b": ["fees"]})
    found = measure(turns, planned, slices=("cards", "unknown"), k_values=(1,))
    estimator = found["dialogue/pass_hat_k", 1, "cards"].estimator
    assert estimator is not None and estimator.value == 1.0
    assert {key[2] for key in found} == {None, "cards"}


def probe(passed: bool) -> ExpectationResult:
    return ExpectationResult("recalls", "Maria", "Maria" if passed else None, passed)


def test_consistency_counts_probes_by_dialogue_and_distance() -> None:
    turns = [
        turn("a", expectations=[probe(True), probe(False)], probe_distance=[1, 3]),
        turn("b", expectations=[probe(True)], probe_distance=[3]),
        turn("c", status="model_fault", text="", expectations=[probe(False)], probe_distance=[2]),
    ]
    found = measure(turns, setup(["a", "b", "c"]))
    item = found["dialogue/consistency", None, None]
    assert item.estimator is not None and (item.estimator.value, item.estimator.n) == (0.5, 4)
    assert item.details["by_distance"] == [
        {"turns": 1, "asked": 1, "honoured": 1, "contradicted": 0, "forgotten": 0},
        {"turns": 2, "asked": 1, "honoured": 0, "contradicted": 0, "forgotten": 1},
        {"turns": 3, "asked": 2, "honoured": 1, "contradicted": 0, "forgotten": 1},
    ]


def test_no_probes_no_consistency() -> None:
    item = measure([turn("a")], setup(["a"]))["dialogue/consistency", None, None]
    assert item.estimator is None and item.reason == "no dialogue asks for a fact"


def handover_dialogue(
    name: str, decided_in: int | None, needed_from: int | None, turns: int = 4
) -> list[TurnRecord]:
    made = []
    for index in range(turns):
        expected = needed_from is not None and index >= needed_from
        given = {"dialogue_turns": turns, "handover_expected": expected, "handover": decided_in == index}
        made.append(turn(name, turn_index=index, **given))
    return made


def test_handover_precision_recall_and_lateness() -> None:
    turns = [
        *handover_dialogue("right", 1, 1),
        *handover_dialogue("late", 3, 1),
        *handover_dialogue("early", 0, 2),
        *handover_dialogue("never", None, 2),
        *handover_dialogue("needless", 1, None),
        *handover_dialogue("none", None, None),
    ]
    names = ["right", "late", "early", "never", "needless", "none"]
    found = measure(turns, setup(names, turns=dict.fromkeys(names, 4)))
    assert value(found, "dialogue/handover_precision") == pytest.approx(2 / 4)
    assert value(found, "dialogue/handover_recall") == pytest.approx(2 / 4)
    assert value(found, "dialogue/handover_rate") == pytest.approx(4 / 6)
    assert value(found, "dialogue/late_turns") == pytest.approx((0 + 2 + 0 + 2) / 4)


def test_without_a_flow_there_is_no_handover_and_no_satisfaction() -> None:
    found = measure([turn("a", handover=None)], setup(["a"]))
    for name in ("handover_precision", "handover_recall", "handover_rate", "late_turns", "satisfaction"):
        item = found[f"dialogue/{name}", None, None]
        assert item.estimator is None and item.reason is not None and "the flow" in item.reason


def test_satisfaction_carries_the_error_of_its_predictor() -> None:
    turns = [turn("a", satisfaction=4.0), turn("b", satisfaction=2.0), turn("c")]
    planned = setup(["a", "b", "c"], satisfaction_error=0.4, satisfaction_data="generated")
    item = measure(turns, planned)["dialogue/satisfaction", None, None]
    assert item.estimator is not None and (item.estimator.value, item.estimator.n, item.widen) == (
        3.0,
        2,
        0.4,
    )
    assert item.details == {"predictor_error": 0.4, "predictor_data": "generated"}


def test_resolution_leaves_out_dialogues_that_need_a_human() -> None:
    turns = [
        *[turn("good", turn_index=index, dialogue_turns=3) for index in range(3)],
        turn("bad_start", dialogue_turns=2, passed=False),
        turn("bad_start", turn_index=1, dialogue_turns=2),
        turn("bad_end", passed=False),
        turn("handed_over", handover=True),
        turn("human", handover=True, handover_expected=True),
    ]
    names = ["good", "bad_start", "bad_end", "handed_over", "human"]
    found = measure(turns, setup(names))
    assert value(found, "dialogue/resolution_rate") == pytest.approx(2 / 4)
    assert value(found, "dialogue/resolution_turns") == pytest.approx((3 + 2) / 2)
    assert found["dialogue/resolution_turns", None, None].details == {"unresolved": 2}


def test_a_dialogue_that_ends_in_thanks_is_settled_by_the_turn_before() -> None:
    polite = [ExpectationResult("handover", "forbidden", False, True)]
    turns = [
        *[
            turn("good", turn_index=0, dialogue_turns=2),
            turn("good", turn_index=1, dialogue_turns=2, expectations=polite),
        ],
        *[
            turn("bad", dialogue_turns=2, passed=False),
            turn("bad", turn_index=1, dialogue_turns=2, expectations=[]),
        ],
    ]
    found = measure(turns, setup(["good", "bad"]))
    assert value(found, "dialogue/resolution_rate") == pytest.approx(1 / 2)


def test_reuse_is_over_the_prompt_tokens_after_the_first_turn() -> None:
    turns = [
        turn("a", prompt_tokens=100, reused_tokens=0, dialogue_turns=3),
        turn("a", turn_index=1, prompt_tokens=150, reused_tokens=120, dialogue_turns=3),
        turn("a", turn_index=2, prompt_tokens=50, reused_tokens=40, dialogue_turns=3),
        lost_turn("b", turn_index=1, dialogue_turns=2),
    ]
    item = measure(turns, setup(["a", "b"]))["cache/reuse_ratio", None, None]
    assert item.estimator is not None and item.estimator.value == pytest.approx(160 / 200)
    assert item.details == {"reused_tokens": 160, "prompt_tokens": 200}
    single = measure([turn("a")], setup(["a"]))["cache/reuse_ratio", None, None]
    assert single.estimator is None and single.reason == "no dialogue has a second turn that was answered"


def test_reuse_that_a_served_model_does_not_tell_is_unknown_not_zero() -> None:
    told = turn("a", turn_index=1, prompt_tokens=150, reused_tokens=120, dialogue_turns=3)
    untold = turn("a", turn_index=2, prompt_tokens=50, reused_tokens=None, dialogue_turns=3)
    item = measure([turn("a", dialogue_turns=3), told, untold], setup(["a"]))["cache/reuse_ratio", None, None]
    assert item.estimator is not None and item.estimator.value == pytest.approx(120 / 150)
    assert item.coverage == pytest.approx(0.5) and item.details["turns_unknown"] == 1
    turns = [turn("a", dialogue_turns=2), turn("a", turn_index=1, reused_tokens=None, dialogue_turns=2)]
    never = measure(turns, setup(["a"]))["cache/reuse_ratio", None, None]
    assert never.estimator is None and never.reason == "the engine doesn't tell what it reused"
    assert never.coverage == 0.0


def test_a_fixed_list_without_variation_is_its_own_population() -> None:
    turns = trials("a", "+") + trials("b", "-")
    fixed = measure(turns, setup(["a", "b"], population="fixed"))
    varied = measure(turns, setup(["a", "b"], population="fixed", varies=True))
    assert fixed["dialogue/pass_hat_k", 1, None].method == "fixed-population"
    assert varied["dialogue/pass_hat_k", 1, None].method is None


def test_records_of_dialogues_that_were_not_planned_stay_out() -> None:
    found = measure(trials("a", "+") + trials("other", "-"), setup(["a"]))
    assert value(found, "dialogue/pass_hat_k", 1) == 1.0


def test_the_predictors_error_widens_interval_and_bounds_within_the_scale() -> None:
    names = [f"d{number:02}" for number in range(40)]
    turns = [turn(name, satisfaction=4.0 + (index % 3) / 3) for index, name in enumerate(names)]

    def satisfaction(error: float | None) -> MetricResult:
        context = MetricContext(0.95, 1, {}, dialogues=setup(names, satisfaction_error=error))
        found = evaluate(Evidence(turns=tuple(turns)), context)
        return next(item for item in found if item.name == "dialogue/satisfaction")

    plain, widened = satisfaction(None), satisfaction(0.7)
    assert plain.bounds is not None and plain.interval is not None
    assert widened.bounds is not None and widened.interval is not None
    assert plain.bounds.low is not None and widened.bounds.low == pytest.approx(plain.bounds.low - 0.7)
    assert plain.interval.low is not None and widened.interval.low == pytest.approx(plain.interval.low - 0.7)
    assert widened.interval.high == 5.0
    assert widened.value == plain.value
    assert widened.bounds.method.endswith("+predictor-error")
