"""What the user's code does wrong in the middle of a training is recorded; and a callback serves several trainings."""

import json

import pytest

from evalkit.resampling.features import Feature
from evalkit.resampling.reweighting import ReweightingSettings
from evalkit.scoring.texts import TextItem
from evalkit.training.callback import EvalCallback
from evalkit.training.drift import Drift
from evalkit.training.evaluation import validation
from evalkit.training.record import JsonlSink
from evalkit.training.selection import EarlyStop, KeepBest
from evalkit.training.triggers import AtFractions, EveryNSteps, OnLossScaleDrop
from tests.evalkit.training.driver import Nowhere, drive, network
from tests.evalkit.training.fixtures import texts, write_tokenizer

pytestmark = pytest.mark.usefixtures("pynative")


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    folder = tmp_path_factory.mktemp("validation")
    return validation(texts(12), write_tokenizer(folder), max_length=128)


class BrokenSink:
    def __init__(self, broken_at: tuple[int, ...]) -> None:
        self.broken_at, self.steps = broken_at, []

    def write(self, record) -> None:
        if record.step in self.broken_at:
            raise OSError("No space left\non device")
        self.steps.append(record.step)

    def close(self) -> None:
        raise RuntimeError("already closed")


def callback(check, sinks=None, **settings):
    return EvalCallback(
        network(check),
        check,
        sinks or [Nowhere()],
        **{"triggers": [EveryNSteps(1)], "metrics": ["perplexity/token"], **settings},
    )


@pytest.mark.parametrize("policy", ["continue", "stop"])
def test_a_sink_that_fails_loses_no_record(check, tmp_path, capsys, policy):
    broken, sound = BrokenSink((1,)), JsonlSink(tmp_path / "records.jsonl")
    found = callback(check, [broken, sound], on_error=policy)
    run = drive(found, steps=2)
    steps = [1, 2] if policy == "continue" else [1]
    lines = [json.loads(line) for line in sound.path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [record.step for record in found.records] == steps
    assert run.stopped == (None if policy == "continue" else 1)
    problem = "step 1: the sink BrokenSink failed: OSError: No space left on device"
    assert found.records[0].problems == (problem,) and found.records[0].error is None
    assert found.records[0].metrics[0]["value"] is not None
    if policy == "continue":
        assert lines[1]["problems"] == [problem]  # where this one is written, the record after it says so
    told = capsys.readouterr().err
    assert problem in told and "the sink BrokenSink failed: RuntimeError: already closed" in told


@pytest.mark.parametrize("policy", ["continue", "stop"])
def test_a_function_to_save_that_fails_is_recorded_and_tried_again(check, policy):
    asked = []

    def save(step):
        asked.append(step)
        if step == 1:
            raise OSError("disk full")

    found = callback(check, keep_best=KeepBest("perplexity/token", save), on_error=policy)
    run = drive(found, steps=2)
    assert found.records[0].problems == ("keep_best: save failed: OSError: disk full",)
    assert found.records[0].error is None and found.records[0].metrics
    assert (run.stopped, asked) == ((None, [1, 2]) if policy == "continue" else (1, [1]))


class BrokenTrigger:
    name, forced, reads = "mine", False, frozenset()

    def __init__(self, at: int, answer=None) -> None:
        self.at, self.answer, self.seen = at, answer, []

    def see(self, event):
        self.seen.append(event.step)
        if event.step == self.at:
            if self.answer is None:
                raise ZeroDivisionError("division by zero")
            return self.answer
        return None


@pytest.mark.parametrize("policy", ["continue", "stop"])
def test_a_trigger_that_fails_is_recorded_once_and_left_out(check, policy, capsys):
    mine = BrokenTrigger(2)
    found = callback(check, triggers=[mine, EveryNSteps(3)], on_error=policy)
    run = drive(found, steps=4)
    first = found.records[0]
    assert (first.step, first.trigger, first.metrics) == (2, "mine", ())
    assert first.error == "trigger mine: ZeroDivisionError: division by zero; it isn't asked again"
    assert first.error in capsys.readouterr().err and mine.seen == [1, 2]
    assert [record.step for record in found.records] == ([2, 3] if policy == "continue" else [2])
    assert run.stopped == (None if policy == "continue" else 2)


def test_a_trigger_that_answers_with_something_else_is_recorded(check):
    found = callback(check, triggers=[BrokenTrigger(1, answer=True)])
    drive(found, steps=2)
    assert "see: a reason, which is a text, or None is needed (got True)" in found.records[0].error


def test_a_rule_that_can_decide_nothing_says_so_in_each_record_and_at_the_end(tmp_path, capsys):
    """Three texts are too few for an interval; `KeepBest` keeps the first, and never another."""
    few = [TextItem(f"t{number}", "Thank you, the payment has arrived.", f"t{number}") for number in range(3)]
    check = validation(few, write_tokenizer(tmp_path), max_length=128)
    found = callback(check, early_stop=EarlyStop("perplexity/token"))
    drive(found, steps=2)
    for record in found.records:
        (problem,) = record.problems
        assert problem.startswith("early_stop: nothing is decided by perplexity/token: it has no interval (")
    told = capsys.readouterr().err
    assert told.count("evalkit: after step 1: early_stop: nothing is decided by perplexity/token: ") == 1
    assert told.index("after step 1") < told.index(
        "early_stop: perplexity/token could decide nothing in 2 eval"
    )


def test_a_training_in_which_nothing_was_measured_says_so(check, capsys):
    found = callback(check, triggers=[EveryNSteps(100)], keep_best=KeepBest("perplexity/token", print))
    drive(found, steps=2)
    assert found.records == [] and "nothing was measured: no trigger asked for" in capsys.readouterr().err
    drive(callback(check), steps=2)
    assert "nothing was measured" not in capsys.readouterr().err


def test_a_feature_that_fails_costs_no_plain_metric(check):
    broken = []
    feature = Feature("tone", lambda texts: [float("nan") if broken else len(text) for text in texts], "tone")
    drift = Drift(lambda arguments: ["a text"] * 30, [feature], settings=ReweightingSettings(min_effective=2))
    found = callback(check, drift=drift, triggers=[EveryNSteps(2)])
    drive(found, steps=2, train_dataset_element=lambda step: broken.append(step))
    (record,) = found.records
    plain, weighted = record.metrics
    assert record.error is None and plain["value"] is not None and weighted["slice"] == "resampled"
    assert (
        weighted["value"] is None
        and "drift: the features of the training texts: tone: gave nan" in weighted["reason"]
    )
    assert "tone: gave nan" in record.to_dict()["drift"]["problem"] and record.effective_sample_size is None


def test_a_second_training_begins_as_new(check):
    saved = []
    found = callback(
        check,
        triggers=[AtFractions([0.25]), OnLossScaleDrop(settled=1)],
        keep_best=KeepBest("perplexity/token", saved.append),
        cooldown=1000,
    )

    def outputs(step):
        return (0.0, False, 2.0**16 if step < 6 else 2.0**10)

    for _ in range(2):
        drive(found, steps=8, net_outputs=outputs)
        fired = [(record.step, record.trigger) for record in found.records]
        assert fired == [(2, "at_fraction"), (6, "loss_scale_drop")]
    assert saved == [2, 2]


def test_a_second_training_has_a_window_of_its_own(check):
    drift = Drift(lambda arguments: arguments.batch, [Feature("words", lambda texts: [], "words")])
    drift.begin = lambda *_: None
    found = callback(check, triggers=[EveryNSteps(100)], drift=drift)
    drive(found, steps=2, batch=7)
    assert drift._problem is not None
    for _ in range(2):
        drive(found, steps=2, batch=["a text"])
        assert drift._problem is None and len(drift._window) == 2
    drive(found, steps=2, batch=["a text"], first_epoch=2)
    assert len(drift._window) == 4  # the same training goes on


def test_a_training_that_goes_on_keeps_what_it_knows(check):
    """One `Model.train` an epoch, with `initial_epoch`: the steps begin anew, the training doesn't."""
    saved = []
    found = callback(check, triggers=[EveryNSteps(4)], keep_best=KeepBest("perplexity/token", saved.append))
    drive(found, steps=4)
    drive(found, steps=4, first_epoch=2)
    assert [(record.step, record.epoch) for record in found.records] == [(4, 0), (4, 1)]
    assert saved == [4]
