"""Whether two evaluations may be compared: everything that makes a score move without the model having changed."""

from collections.abc import Iterator
from dataclasses import dataclass

from evalkit.training.description import EvaluationDescription
from trainer.findings import Evidence, Finding, Rival, Severity

# A float32 log-probability moves by about 1e-6 with the company it is scored in; more is a fault.
_BATCH_TOLERANCE_NATS = 1e-4
_SHOWN = 5


@dataclass(frozen=True)
class _Equal:
    """A field that two comparable evaluations share."""

    field: str
    rule: str
    severity: Severity
    what: str
    action: str


_MUST_BE_EQUAL = (
    _Equal("tokenizer_sha256", "tokenizer_differs", "error", "the tokenizers differ", "score both with one tokenizer.json, or compare bits per byte"),
    _Equal("template_sha256", "template_differs", "error", "the chat templates differ", "use one template; a changed template changes every prompt"),
    _Equal("precision", "precision_differs", "error", "the precisions differ", "score both in float32"),
    _Equal("signature", "protocol_differs", "error", "windows, classes or counts differ", "pin window, classes and counts in one scenario for both"),
    _Equal("samples_sha256", "samples_differ", "error", "other samples were scored", "score the same ids, or compare paired on those that both hold"),
    _Equal("padding_side", "padding_differs", "warning", "the padding sides differ", "pad on one side, behind the text for a causal model, and mask by position"),
    _Equal("shuffled", "shuffling_differs", "warning", "one of them shuffles its samples", "evaluate in a fixed order"),
    _Equal("seed", "seeds_differ", "warning", "the seeds differ", "give both one seed; samples drawn by another seed are another set"),
)  # fmt: skip

_MEANING = {
    "error": "the scores aren't comparable",
    "warning": "a part of the difference of the scores may come from it",
}


def check_evaluations(first: EvaluationDescription, second: EvaluationDescription) -> list[Finding]:
    """Findings, the gravest first; none: nothing is known that speaks against a comparison."""
    findings = [*_differences(first, second)]
    for side in (first, second):
        findings += _faults(side)
    findings += _unknown(first, second)
    order = ("error", "warning", "info")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _differences(first: EvaluationDescription, second: EvaluationDescription) -> Iterator[Finding]:
    for rule in _MUST_BE_EQUAL:
        values = [getattr(side, rule.field) for side in (first, second)]
        if None in values or values[0] == values[1]:
            continue
        evidence = tuple(
            Evidence(
                rule.field,
                value if isinstance(value, int) and not isinstance(value, bool) else str(value),
                where=side.source,
            )
            for side, value in zip((first, second), values, strict=True)
        )
        rivals = (
            (Rival("weights_differ", "the weights differ too, which is what a comparison is about"),)
            if _both_differ(first, second)
            else ()
        )
        yield Finding(
            rule.rule,
            rule.severity,
            f"{rule.what}: {_MEANING[rule.severity]}",
            evidence,
            rivals,
            rule.action,
        )


def _both_differ(first: EvaluationDescription, second: EvaluationDescription) -> bool:
    digests = (first.weights_sha256, second.weights_sha256)
    return None not in digests and digests[0] != digests[1]


def _faults(side: EvaluationDescription) -> Iterator[Finding]:
    if side.training_parts:
        yield _finding(
            "frozen_train_mode", "error", side, "training_parts", side.training_parts,
            "parts of the network were in training mode, so that every score is a draw",
            "call network.set_train(False) before, and put the mode back after",
        )  # fmt: skip
    if side.repeated:
        yield _finding(
            "samples_repeated", "error", side, "repeated", side.repeated,
            "samples were counted more than once",
            "shard without padding by repetition, or drop repeats by id before summing",
        )  # fmt: skip
    if side.missing:
        yield _finding(
            "samples_missing", "error", side, "missing", side.missing,
            "planned samples have no result",
            "set drop_remainder=False and give every rank its own rest",
        )  # fmt: skip
    if side.stale:
        yield _finding(
            "stale_code", "error", side, "stale", side.stale,
            "code in memory isn't what its file says",
            "restart the kernel, or reload the module, before scoring",
        )  # fmt: skip
    if side.batch_difference is not None and side.batch_difference > _BATCH_TOLERANCE_NATS:
        yield Finding(
            "batch_dependent",
            "error",
            "a text's score depends on what is scored beside it",
            (Evidence("batch_difference", side.batch_difference, "nats", side.source),),
            (
                Rival(
                    "low_precision",
                    "float16 or bfloat16 arithmetic moves scores by about 1e-2 without any fault",
                ),
            ),
            "mask padding by position, and keep the texts of a row apart",
        )


def _finding(
    rule: str,
    severity: Severity,
    side: EvaluationDescription,
    name: str,
    items: tuple[str, ...],
    what: str,
    action: str,
) -> Finding:
    shown = ", ".join(items[:_SHOWN]) + (f", and {len(items) - _SHOWN} more" if len(items) > _SHOWN else "")
    evidence = (
        Evidence(f"{name}_count", len(items), where=side.source),
        Evidence(name, shown, where=side.source),
    )
    return Finding(rule, severity, f"{what} ({side.source})", evidence, (), action)


def _unknown(first: EvaluationDescription, second: EvaluationDescription) -> Iterator[Finding]:
    names = [rule.field for rule in _MUST_BE_EQUAL] + [
        "training_parts",
        "repeated",
        "missing",
        "batch_difference",
        "stale",
    ]
    for side in (first, second):
        unknown = [name for name in names if getattr(side, name) is None]
        if unknown:
            yield Finding(
                "not_known",
                "info",
                f"{side.source} doesn't say all that matters",
                (Evidence("unknown", ", ".join(unknown), where=side.source),),
                (),
                "describe the evaluation with evalkit.training.description.describe, which looks at the live objects",
            )
