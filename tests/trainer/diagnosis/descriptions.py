"""Two evaluations that may be compared."""

from dataclasses import replace

from evalkit.training.description import EvaluationDescription

SOUND = EvaluationDescription(
    source="a",
    seed=1,
    shuffled=False,
    precision="fp32",
    signature="ppl|w:128/128/first",
    tokenizer_sha256="t" * 64,
    template_sha256="none",
    padding_side="none",
    weights_sha256="w" * 64,
    training_parts=(),
    samples=3,
    samples_sha256="s" * 64,
    repeated=(),
    missing=(),
    batch_difference=1e-6,
    stale=(),
)
OTHER = replace(SOUND, source="b", weights_sha256="v" * 64)
