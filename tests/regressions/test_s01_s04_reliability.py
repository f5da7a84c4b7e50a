"""S1-S4, E41, E55: reliability figures that came out too good."""

import pytest

from evalkit.errors import InputError
from evalkit.metrics.context import DialogueSetup, MetricContext
from evalkit.metrics.dialogue import estimators
from evalkit.metrics.estimators import NamedEstimator
from evalkit.replay.client import SandboxClient
from evalkit.replay.runner import run_dialogues
from evalkit.replay.trial import ReplaySettings
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ExpectationResult, TurnRecord
from tests.support.dialogues import RECALL, dialogue, lost_turn, setup, turn
from tests.support.fake_sandbox import Answer, FakeSandbox, serve


def pass_hat(turns: list[TurnRecord], planned: DialogueSetup, k: int = 1) -> NamedEstimator:
    context = MetricContext(0.95, 1, {}, dialogues=planned, k_values=(k,))
    found = estimators(Evidence(turns=tuple(turns)), context)
    return next(item for item in found if item.name == "dialogue/pass_hat_k")


def test_s1_crashed_trials_show_as_lost_coverage_not_as_100_percent() -> None:
    turns = [turn("a", 0), *[lost_turn("a", trial) for trial in (1, 2, 3)]]
    item = pass_hat(turns, setup(["a"], 4))
    assert item.estimator is not None and item.estimator.value == 1.0
    assert item.coverage == 0.25


def test_s2_successes_are_counted_by_predicate_not_by_adding_rewards() -> None:
    half = [ExpectationResult("contains", "a", "a", True), ExpectationResult("contains", "b", None, False)]
    turns = [turn("a", trial, expectations=list(half)) for trial in (0, 1)]
    item = pass_hat(turns, setup(["a"], 2))
    assert item.details["trials_passed"] == 0


def test_s3_a_duplicate_result_is_an_error() -> None:
    with pytest.raises(InputError, match="recorded twice"):
        pass_hat([turn("a", 0), turn("a", 0)], setup(["a"], 2))


def _count_generations(trials: int) -> tuple[FakeSandbox, list[TurnRecord]]:
    sandbox = FakeSandbox(lambda session, text: Answer("hello " + " ".join([*session.texts, text])))
    records: list[TurnRecord] = []
    with serve(sandbox) as address, SandboxClient(address) as client:
        run_dialogues([dialogue(RECALL)], ReplaySettings(1, trials, ("paraphrase",)), client, records.extend)
    return sandbox, records


def test_s4_e55_k_repeats_make_k_generations() -> None:
    sandbox, records = _count_generations(trials=5)
    assert sandbox.generations == 5 * 3
    assert len(sandbox.sessions) == 5
    assert len({(record.trial, record.turn_index) for record in records}) == 15


def test_s4_copies_of_one_trial_count_as_one() -> None:
    turns = [turn("a", trial, user_text="the same") for trial in range(5)]
    item = pass_hat(turns, setup(["a"], 5, varies=False), k=3)
    assert item.estimator is None and item.reason is not None and "count as one" in item.reason


def test_e41_no_verdicts_is_unscored_not_1() -> None:
    found = estimators(Evidence(), MetricContext(0.95, 1, {}, dialogues=setup(["a"])))
    assert all(item.estimator is None and item.reason for item in found)
    assert next(item for item in found if item.name == "dialogue/pass_hat_k").coverage == 0.0


def test_e41_a_dialogue_without_probes_adds_nothing_to_consistency() -> None:
    found = estimators(Evidence(turns=(turn("a"),)), MetricContext(0.95, 1, {}, dialogues=setup(["a"])))
    item = next(item for item in found if item.name == "dialogue/consistency")
    assert item.estimator is None and item.reason == "no dialogue asks for a fact"
