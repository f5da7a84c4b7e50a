"""Made-up evidence of texts and decisions."""

from evalkit.metrics.context import MetricContext, RiskSetup
from evalkit.runs.records import ClassSums, SampleRecord

RISK = RiskSetup(labels=("approve", "reject"), high_risk="reject", recall=0.9)


def context(**changes) -> MetricContext:
    settings = {
        "confidence": 0.95,
        "seed": 7,
        "signatures": {"text": "ppl|x", "bytes": "ppl|y", "risk": "risk|z"},
        "risk": RISK,
    }
    return MetricContext(**{**settings, **changes})


def text_record(name: str, **changes) -> SampleRecord:
    """A text of 10 tokens: head 7 with 7 nats, oov 1 with 8, long_tail 2 with 6."""
    classes = {
        "head": ClassSums(7, nll=7.0, entropy=3.5, margin=7.0, rank=7.0, top1=7, top5=7, bytes=28),
        "oov": ClassSums(1, nll=8.0, entropy=4.0, margin=-3.0, rank=90.0, top1=0, top5=0, bytes=6),
        "long_tail": ClassSums(2, nll=6.0, entropy=2.0, margin=-1.0, rank=8.0, top1=0, top5=1, bytes=6),
    }
    fields = {
        "sample_id": name,
        "kind": "text",
        "digest": name,
        "cluster": name,
        "status": "ok",
        "tokens": 10,
        "scored": 10,
        "bytes": 40,
        "bytes_scored": 40,
        "words": 8,
        "nll": 21.0,
        "classes": classes,
    }
    return SampleRecord(**{**fields, **changes})


def decision_record(name: str, target: str, score: float, part: str = "judged", **changes) -> SampleRecord:
    """A decision whose ln p(reject) - ln p(approve) is `score`."""
    fields = {
        "sample_id": name,
        "kind": "risk",
        "digest": name,
        "cluster": name,
        "status": "ok",
        "target": target,
        "label_logprobs": [-5.0, -5.0 + score],
        "part": part,
    }
    return SampleRecord(**{**fields, **changes})
