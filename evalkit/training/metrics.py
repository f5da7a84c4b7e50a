"""evalkit's metrics as `mindspore.train.Metric`, for `Model.eval` and `Model.fit`.

MindSpore's own `Perplexity` takes probabilities and averages over what it is given, padding included, and its `Loss`
averages batch means. Here logits are taken, positions are told by mask, sums are exact, and one division comes last.
"""

from typing import Any

import numpy as np
from mindspore import Tensor
from mindspore.train import Metric

from evalkit.canonical import sha256_text
from evalkit.checks import instance, number, whole
from evalkit.errors import InputError
from evalkit.metrics.context import MetricContext
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.registry import spec_for
from evalkit.metrics.result import MetricResult
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import SampleRecord
from evalkit.scoring.engine import SequenceStats, first_undefined
from evalkit.scoring.head import ScoringHead
from evalkit.scoring.text_records import token_sums

# What follows from logits and labels alone: no bytes, words or classes of a text.
METRICS = ("perplexity/token", "logits/entropy", "logits/margin", "logits/rank", "logits/top_k_accuracy")

_CLASS = "other"


class TokenMetric(Metric):  # type: ignore[misc]
    """One of evalkit's token metrics over the rows of an evaluation.

    A row is a cluster: `result` gives the interval as well. Use it as
    `Model(network, loss_fn, metrics={"perplexity": TokenMetric("perplexity/token")})`.
    """

    def __init__(
        self, name: str = "perplexity/token", *, ignore_label: int = -100, confidence: float = 0.95
    ) -> None:
        """Prepare.

        Args:
            name: one of `METRICS`.
            ignore_label: a label that asks for nothing, e.g. at padding.
            confidence: of the interval.

        Raises:
            InputError: the name isn't one of them, or a number doesn't fit.
        """
        super().__init__()
        instance("name", name, str, "a metric's name")
        whole("ignore_label", ignore_label, least=-(2**31))
        number("confidence", confidence, above=0.5, below=1, what="a number above 0.5 and below 1")
        if name not in METRICS:
            spec_for(name)  # a misspelt name gets its own message
            raise InputError(f"{name}: needs more than logits and labels; choose from {', '.join(METRICS)}")
        self.name, self._ignored = name, ignore_label
        self._context = MetricContext(
            confidence=confidence, seed=0, signatures={"text": f"logits|ignore:{ignore_label}|p:fp32|v:1"}
        )
        self._head: ScoringHead | None = None
        self._width = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._rows: list[SampleRecord] = []

    def update(self, *inputs: Any) -> None:
        """Add a batch.

        Args:
            inputs: logits (rows, length, vocabulary) or (tokens, vocabulary), and the labels (rows, length) or
                (tokens,): integers, at each position the id of the token that comes next.

        Raises:
            InputError: shapes or types don't fit, or the logits are probabilities.
        """
        if len(inputs) != 2:
            raise InputError(f"{self.name}: two inputs are needed, logits and labels (got {len(inputs)})")
        for what, value in zip(("logits", "labels"), inputs, strict=True):
            instance(
                f"{self.name}: {what}", value, Tensor | np.ndarray | list, "a tensor, an array or a list"
            )
        logits = inputs[0] if isinstance(inputs[0], Tensor) else Tensor(np.asarray(inputs[0]))
        labels = self._convert_data(inputs[1])
        if logits.ndim not in (2, 3) or tuple(labels.shape) != tuple(logits.shape[:-1]):
            raise InputError(
                f"{self.name}: logits {tuple(logits.shape)} and labels {tuple(labels.shape)} don't fit; give "
                "(rows, length, vocabulary) and (rows, length)"
            )
        if not np.issubdtype(labels.dtype, np.integer):
            raise InputError(f"{self.name}: labels are integers (got {labels.dtype})")
        width = int(logits.shape[-1])
        if not labels.size:
            return
        if self._rows and width != self._width:
            raise InputError(
                f"{self.name}: logits of {width} ids after others of {self._width}; give those of one vocabulary"
            )
        asked = labels != self._ignored
        if ((labels < 0) | (labels >= width))[asked].any():
            raise InputError(
                f"{self.name}: a label lies outside of the {width} ids; ignore padding by ignore_label"
            )
        flat = logits.reshape(-1, width)
        _refuse_probabilities(self.name, flat)
        if self._head is None or width != self._width:
            self._head, self._width = ScoringHead(width), width
        targets = np.where(asked, labels, 0).astype(np.int32)
        outputs = self._head(flat, Tensor(targets.reshape(-1)))
        logprob, entropy, margin, rank, _ = (output.asnumpy().reshape(labels.shape) for output in outputs)
        for row in range(labels.shape[0] if labels.ndim == 2 else 1):
            used = (row, asked[row]) if labels.ndim == 2 else asked
            self._add(SequenceStats(logprob[used], entropy[used], margin[used], rank[used], elapsed_ns=0))

    def eval(self) -> float:
        """The value; NaN where nothing was asked or a row gave no finite number (`result` says how many did)."""
        value = self.result().value
        failed = any(row.status == "error" for row in self._rows)
        return float("nan") if value is None or failed else value

    def result(self) -> MetricResult:
        """Value with interval, or null with the reason."""
        found = evaluate(Evidence(samples=tuple(self._rows)), self._context) if self._rows else []
        for metric in found:
            if metric.name == self.name and metric.slice is None:
                return metric
        spec = spec_for(self.name)
        return MetricResult(self.name, None, "nothing was evaluated", spec.unit, spec.direction, 0, 0, "")

    def _add(self, stats: SequenceStats) -> None:
        tokens, number = len(stats.logprob), len(self._rows)
        name = f"row-{number:09d}"
        undefined = first_undefined(stats)
        reason = None if undefined is None else f"the {undefined[1]} of position {undefined[0]} isn't finite"
        if reason is not None:
            self._rows.append(SampleRecord(name, "text", sha256_text(name), name, "error", reason))
            return
        if not tokens:
            why = "no label asks for anything"
            self._rows.append(SampleRecord(name, "text", sha256_text(name), name, "skipped", why))
            return
        codes, sizes = np.zeros(tokens, dtype=np.int64), np.zeros(tokens, dtype=np.int64)
        sums = token_sums(stats, codes, sizes, (_CLASS,))
        self._rows.append(
            SampleRecord(
                sample_id=name,
                kind="text",
                digest=sha256_text(name),
                cluster=name,
                status="ok",
                tokens=tokens,
                scored=tokens,
                nll=sums[_CLASS].nll,
                classes=sums,
            )
        )


def _refuse_probabilities(name: str, rows: Tensor) -> None:
    sample = rows[: min(8, rows.shape[0])].astype("float32").asnumpy().astype(np.float64)
    if len(sample) and (sample >= 0).all() and np.allclose(sample.sum(-1), 1, atol=1e-3):
        raise InputError(f"{name}: these are probabilities; give the logits, before any softmax")
