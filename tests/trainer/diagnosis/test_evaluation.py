"""Whether two evaluations may be compared."""

from dataclasses import replace

import pytest

from tests.trainer.diagnosis.descriptions import OTHER, SOUND
from trainer.diagnosis.evaluation import check_evaluations


def test_two_sound_ones_have_no_finding():
    assert check_evaluations(SOUND, OTHER) == []


@pytest.mark.parametrize(
    ("field", "value", "rule", "severity"),
    [
        ("seed", 2, "seeds_differ", "warning"),
        ("shuffled", True, "shuffling_differs", "warning"),
        ("precision", "fp16", "precision_differs", "error"),
        ("signature", "ppl|w:64/64/first", "protocol_differs", "error"),
        ("tokenizer_sha256", "u" * 64, "tokenizer_differs", "error"),
        ("template_sha256", "u" * 64, "template_differs", "error"),
        ("samples_sha256", "u" * 64, "samples_differ", "error"),
        ("padding_side", "left", "padding_differs", "warning"),
        ("training_parts", ("dropout (Dropout)",), "frozen_train_mode", "error"),
        ("repeated", ("t1",), "samples_repeated", "error"),
        ("missing", ("t1", "t2"), "samples_missing", "error"),
        ("stale", ("metric.score",), "stale_code", "error"),
        ("batch_difference", 0.02, "batch_dependent", "error"),
    ],
)
def test_each_difference_is_named_once(field, value, rule, severity):
    (finding,) = check_evaluations(SOUND, replace(OTHER, **{field: value}))
    assert (finding.rule, finding.severity) == (rule, severity)
    assert any(item.where == "b" for item in finding.evidence) and finding.action


def test_only_an_error_makes_scores_incomparable():
    said = {
        field: check_evaluations(SOUND, replace(OTHER, **{field: value}))[0].summary
        for field, value in (("seed", 2), ("precision", "fp16"))
    }
    assert said["seed"] == "the seeds differ: a part of the difference of the scores may come from it"
    assert said["precision"] == "the precisions differ: the scores aren't comparable"


def test_what_is_not_known_is_said_and_is_no_difference():
    (finding,) = check_evaluations(SOUND, replace(OTHER, tokenizer_sha256=None, stale=None))
    assert finding.rule == "not_known" and finding.severity == "info"
    assert finding.value("unknown") == "tokenizer_sha256, stale"


def test_errors_come_first():
    worse = replace(OTHER, seed=9, stale=None, missing=tuple(f"t{index}" for index in range(9)))
    findings = check_evaluations(SOUND, worse)
    assert [finding.severity for finding in findings] == ["error", "warning", "info"]
    assert findings[0].value("missing") == "t0, t1, t2, t3, t4, and 4 more"
