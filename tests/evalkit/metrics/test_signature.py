"""Signatures change with what changes the numbers, and with nothing else."""

from evalkit.metrics.signature import dialogue_signatures, risk_signatures, text_signatures
from evalkit.scenario.schema import Dialogues, Risk, Window

WINDOW = Window(length=256, stride=128)


def test_text():
    found = text_signatures(WINDOW, "fp32", "9be1c04d77", "02ab84f1aa", "whitespace")
    assert found == {
        "text": "ppl|w:256/128/first|p:fp32|t:02ab84f1|c:9be1c04d|v:1",
        "bytes": "ppl|w:256/128/first|p:fp32|v:1",
        "words": "ppl|w:256/128/first|p:fp32|words:whitespace|v:1",
    }


def test_risk():
    def signature(family="risk", **changes):
        risk = Risk(**{"data": "a", "labels": ["x", "y"], "high_risk": "y", **changes})
        return risk_signatures(risk, "fp32")[family]

    assert signature().endswith("|cal:0.3|r:0.95|len:sum|p:fp32|v:1")
    assert signature() == signature(data="b")
    assert len({signature(), signature(high_risk="x"), signature(calibration=0.4)}) == 3
    costs = {"false_approve": 5, "false_reject": 1}
    assert signature() == signature(bins=5) == signature(costs=costs)
    assert "|b:10|" in signature("calibration") and "|b:5|" in signature("calibration", bins=5)
    assert "|cost:none|" in signature("cost") and "|cost:5/1|" in signature("cost", costs=costs)


def test_dialogues():
    def signature(flow="f" * 64, family="dialogue", **changes):
        return dialogue_signatures(Dialogues(**{"include": ["a"], **changes}), flow)[family]

    assert signature() == "dlg|t:0|max:64|var:none|pop:sample|f:ffffffff|v:1"
    assert signature(variation=["typos", "paraphrase"]) == signature(variation=["paraphrase", "typos"])
    assert signature(None).endswith("|f:none|v:1")


def test_the_costs_of_a_dialogue_stand_in_the_signature_of_its_cost_alone():
    plain = dialogue_signatures(Dialogues(include=["a"]), None)
    dear = dialogue_signatures(Dialogues(include=["a"], costs={"handover": 6}), None)
    assert plain["dialogue"] == dear["dialogue"] and plain["dialogue_cost"] != dear["dialogue_cost"]
    assert "|cost:none|" in plain["dialogue_cost"]
