"""What is written of each evaluation, and where to."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from evalkit.checks import instance
from evalkit.errors import InputError
from evalkit.files import refuse_named_pipe
from evalkit.metrics.result import MetricResult


@dataclass(frozen=True)
class EvaluationRecord:
    """One evaluation during training: a line of the JSON Lines file.

    Attributes:
        step, epoch: after which it ran; steps from 1, whole epochs before it.
        trigger, reason: the rule that asked, and what it saw.
        loss_scale: at that time; None where the training has none.
        metrics: name, value, n, interval, signature and, where there is no value, the reason.
        weights_sha256: of the measured parameters; None where the evaluation failed before.
        effective_sample_size, uncovered_mass: of a drift-aware validation, else None.
        error: why there is no result, else None.
        problems: what else went wrong: a decision that can't be made, a function to save that failed, a sink that did (an
            earlier record's, where this one is written).
        elapsed_ns: time of the evaluation.
    """

    step: int
    epoch: int
    trigger: str
    reason: str
    loss_scale: float | None
    metrics: tuple[Mapping[str, Any], ...] = ()
    weights_sha256: str | None = None
    effective_sample_size: float | None = None
    uncovered_mass: float | None = None
    error: str | None = None
    problems: tuple[str, ...] = ()
    elapsed_ns: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; details stand beside the other fields."""
        value = asdict(self)
        return {**value, **value.pop("details")}


# Of a metric under a perturbation.
_ROBUSTNESS = ("clean", "perturbed", "texts_compared", "texts_changed", "worst_slice", "worst_slice_value")


def metric_entry(metric: MetricResult) -> dict[str, Any]:
    """The part of a metric that a record keeps."""
    interval = metric.interval
    return {
        "name": metric.name,
        "k": metric.k,
        "slice": metric.slice,
        "value": metric.value,
        "reason": metric.reason,
        "n": metric.n,
        "interval": None
        if interval is None
        else {
            "low": interval.low,
            "high": interval.high,
            "confidence": interval.confidence,
            "method": interval.method,
        },
        "signature": metric.signature,
        **{name: metric.details[name] for name in _ROBUSTNESS if name in metric.details},
    }


def finite(value: float | None) -> float | None:
    """A number that JSON can hold, else None."""
    return None if value is None or not math.isfinite(value) else value


class Sink(Protocol):
    """Takes the records of a training, in order."""

    def write(self, record: EvaluationRecord) -> None: ...

    def close(self) -> None: ...


class JsonlSink:
    """Appends to a JSON Lines file, which is open only while a line is written: one sink serves several trainings."""

    def __init__(self, path: str | Path) -> None:
        """Make the file and its folder.

        Raises:
            InputError: it can't be written.
        """
        self.path = Path(instance("path", path, str | Path, "the path of a file"))
        refuse_named_pipe(self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a", encoding="utf-8").close()
        except OSError as error:
            raise InputError(f"{self.path}: can't be written ({error.strerror}); give another file") from None

    def write(self, record: EvaluationRecord) -> None:
        """See `Sink.write`."""
        line = json.dumps(record.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"
        with self.path.open("ab+") as stream:
            # A line that a killed training or a full disk tore off would swallow this record too.
            stream.write(("\n" * _torn(stream) + line).encode())

    def close(self) -> None:
        """See `Sink.close`."""
        # Nothing is open between two records.


def _torn(stream: BinaryIO) -> bool:
    """Whether a file ends in the middle of a line."""
    if not stream.seek(0, os.SEEK_END):
        return False
    stream.seek(-1, os.SEEK_END)
    return stream.read(1) != b"\n"


class MlflowSink:
    """Logs values and interval ends to the active MLflow run (extra `mlflow`).

    A metric `perplexity/token` has the key `evalkit/perplexity/token`, its interval the same with `.low` and `.high`; what
    has no value isn't logged.
    """

    def __init__(self, run_id: str | None = None) -> None:
        """Take the run `run_id`, or the active one (one is started where there is none).

        Raises:
            InputError: MLflow isn't installed, or `run_id` is no text.
        """
        if run_id is not None:
            instance("run_id", run_id, str, "the id of a run")
        try:
            import mlflow
        except ImportError:
            raise InputError('MLflow isn\'t installed; pip install "evalkit[mlflow]"') from None
        self._client = mlflow.MlflowClient()
        self._started = run_id is None and mlflow.active_run() is None
        if run_id is None:
            run_id = (mlflow.active_run() or mlflow.start_run()).info.run_id
        self._run_id, self._mlflow = run_id, mlflow

    def write(self, record: EvaluationRecord) -> None:
        """See `Sink.write`."""
        for key, value in scalars(record):
            self._client.log_metric(self._run_id, key, value, step=record.step)

    def close(self) -> None:
        """Ends the run where this sink started it."""
        if self._started:
            self._mlflow.end_run()


class TensorBoardSink:
    """Writes values and interval ends as TensorBoard scalars (extra `tensorboard`)."""

    def __init__(self, folder: str | Path) -> None:
        """Write event files into `folder`.

        Raises:
            InputError: no TensorBoard writer is installed, or `folder` isn't a path.
        """
        instance("folder", folder, str | Path, "the path of a folder")
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise InputError('tensorboardX isn\'t installed; pip install "evalkit[tensorboard]"') from None
        self._open, self._folder = SummaryWriter, str(folder)
        self._trainings = 0
        self._writer: Any = self._open(self._folder)

    def write(self, record: EvaluationRecord) -> None:
        """See `Sink.write`."""
        if self._writer is None:
            # Another training. A file's name holds the second only: without a name of its own it might replace the last one.
            self._trainings += 1
            self._writer = self._open(self._folder, filename_suffix=f".{self._trainings}")
        for key, value in scalars(record):
            self._writer.add_scalar(key, value, record.step)
        self._writer.add_text("evalkit/trigger", f"{record.trigger}: {record.reason}", record.step)
        self._writer.flush()

    def close(self) -> None:
        """See `Sink.close`."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None


def scalars(record: EvaluationRecord) -> Sequence[tuple[str, float]]:
    """The numbers of a record by key: each metric with a value, and the ends of its interval."""
    found: list[tuple[str, float]] = []
    for metric in record.metrics:
        parts = [metric["name"], *(str(metric[part]) for part in ("k", "slice") if metric[part] is not None)]
        # Not by a slash: a store of files can't hold a metric `a` beside a metric `a/b`.
        key = "evalkit/" + ".".join(parts)
        if metric["value"] is not None:
            found.append((key, metric["value"]))
        for end, value in (metric["interval"] or {}).items():
            if end in ("low", "high") and value is not None:
                found.append((f"{key}.{end}", value))
    if record.loss_scale is not None:
        found.append(("evalkit/loss_scale", record.loss_scale))
    return found
