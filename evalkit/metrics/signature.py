"""Protocol signatures: how a number was made, short enough to stand beside it. Unequal ones aren't
comparable.

The model isn't part of it. Digests are cut to eight hexadecimal digits.
"""

from evalkit.canonical import sha256_json
from evalkit.scenario.schema import Dialogues, Risk, Window

# Raised when the same model and data would give other numbers than before.
_VERSION = 1
_DIGITS = 8


def text_signatures(
    window: Window | None, precision: str, classes_digest: str, tokenizer_sha256: str, words: str
) -> dict[str, str]:
    """Signatures of the text metrics, by family.

    Args:
        window: how texts were cut; None: not at all.
        precision: of the backend.
        classes_digest: of the token classes with their counts and glossary.
        tokenizer_sha256: numbers per token of different tokenizers aren't comparable; those per byte and word
            are.
        words: name of the rule by which words are counted.

    Returns:
        "text", e.g. `ppl|w:256/256/first|p:fp32|t:02ab84f1|c:9be1c04d|v:1`, "bytes", without t and c, and "words", as
        "bytes" with `words:whitespace` or another rule.
    """
    cut = "whole" if window is None else f"{window.length}/{window.stride}/{window.prefix}"
    head = f"ppl|w:{cut}|p:{precision}"
    tokens = f"t:{tokenizer_sha256[:_DIGITS]}|c:{classes_digest[:_DIGITS]}"
    return {
        "text": f"{head}|{tokens}|v:{_VERSION}",
        "bytes": f"{head}|v:{_VERSION}",
        "words": f"{head}|words:{words}|v:{_VERSION}",
    }


def risk_signatures(risk: Risk, precision: str) -> dict[str, str]:
    """Signatures of the metrics of decisions, by family.

    Returns:
        "risk", e.g. `risk|l:1f0c22ab|cal:0.3|r:0.95|len:sum|p:fp32|v:1`, where l is of the labels; "calibration",
        with the number of bins; "cost", with the cost matrix (none where none is declared).
    """
    labels = sha256_json({"labels": risk.labels, "high_risk": risk.high_risk})[:_DIGITS]
    point = f"cal:{risk.calibration:g}|r:{risk.operating_point.recall:g}"
    how = f"len:sum|p:{precision}|v:{_VERSION}"
    costs = "none" if risk.costs is None else f"{risk.costs.false_approve:g}/{risk.costs.false_reject:g}"
    return {
        "risk": f"risk|l:{labels}|{point}|{how}",
        "calibration": f"cal|l:{labels}|cal:{risk.calibration:g}|b:{risk.bins}|{how}",
        "cost": f"cost|l:{labels}|{point}|cost:{costs}|{how}",
    }


def dialogue_signatures(dialogues: Dialogues, flow_digest: str | None) -> dict[str, str]:
    """Signatures of the metrics of dialogues, by family.

    Returns:
        "dialogue", also of the latencies: how replies were drawn, and the business flow around the model; and
        "dialogue_cost", with the costs (none where none are declared).
    """
    variation = "+".join(sorted(dialogues.variation)) or "none"
    sampling = f"t:{dialogues.temperature:g}|max:{dialogues.max_new_tokens}"
    flow = "none" if flow_digest is None else flow_digest[:_DIGITS]
    how = f"{sampling}|var:{variation}|pop:{dialogues.population}|f:{flow}|v:{_VERSION}"
    costs = "none" if dialogues.costs is None else sha256_json(dialogues.costs.model_dump())[:_DIGITS]
    return {"dialogue": f"dlg|{how}", "dialogue_cost": f"dlg|cost:{costs}|{how}"}
