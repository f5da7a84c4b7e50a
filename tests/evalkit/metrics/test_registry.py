"""Every metric is declared once; unknown names get a hint."""

import pytest

from evalkit.errors import InputError
from evalkit.metrics.registry import SPECS, TOKEN_CLASSES, metric_names, spec_for

DESIGN = [
    "perplexity/token",
    "perplexity/word",
    "perplexity/byte",
    "bits_per_byte",
    "perplexity/long_tail",
    "perplexity/without_oov",
    "rate/oov",
    "logits/entropy",
    "logits/margin",
    "logits/rank",
    "logits/top_k_accuracy",
    "logits/entropy/domain",
    "risk/high_risk_recall",
    "risk/false_reject_rate",
    "risk/precision",
    "risk/auc",
    "dialogue/pass_hat_k",
    "dialogue/consistency",
    "dialogue/handover_precision",
    "dialogue/handover_recall",
    "dialogue/handover_rate",
    "dialogue/late_turns",
    "dialogue/satisfaction",
    "dialogue/resolution_rate",
    "dialogue/resolution_turns",
    "dialogue/cost",
    "latency/first_token",
    "latency/turn_overhead",
    "latency/per_token",
    "cache/reuse_ratio",
]


@pytest.mark.parametrize("name", DESIGN)
def test_the_names_of_the_design_exist(name):
    assert spec_for(name).action


def test_names_are_unique_and_complete():
    names = [spec.name for spec in SPECS]
    assert len(set(names)) == len(names)
    assert set(DESIGN) <= set(metric_names())
    assert {f"perplexity/{name}" for name in TOKEN_CLASSES} <= set(metric_names())


def test_directions():
    higher = {name for name in DESIGN if spec_for(name).direction == "higher"}
    assert {"risk/high_risk_recall", "dialogue/pass_hat_k", "cache/reuse_ratio", "logits/margin"} <= higher
    assert not {"perplexity/token", "risk/false_reject_rate", "latency/first_token", "rate/oov"} & higher


def test_unknown_name_gets_a_hint():
    with pytest.raises(
        InputError, match="unknown metric 'perplexity/longtail'; did you mean perplexity/long_tail"
    ):
        spec_for("perplexity/longtail")
    with pytest.raises(InputError, match="unknown metric 'zzz'; one of: perplexity/token"):
        spec_for("zzz")
