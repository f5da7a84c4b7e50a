"""A scenario's texts measured during training, by the scorer and with the classes of `evalkit run`."""

import gzip
import io
from pathlib import Path

import numpy as np

from evalkit.bundle import parse_word_counts
from evalkit.canonical import sha256_bytes
from evalkit.metrics.counts import Counts
from evalkit.training.callback import EvalCallback
from evalkit.training.distributed import Ranks
from evalkit.training.evaluation import ModelInTraining, validation_of_scenario
from evalkit.training.record import EvaluationRecord
from evalkit.training.triggers import AtEnd, EveryNSteps, OnLossScaleDrop, Trigger
from trainer.config import TrainConfig
from trainer.data.pipeline import TrainingData
from trainer.processes import Processes
from trainer.run_log import JsonLines
from trainer.step import TrainStep


class LogSink:
    """Writes records into a log of the run, which a resumed run cuts back to its checkpoint.

    Attributes:
        lines: the log, which is opened after the callback was made.
    """

    lines: JsonLines | None = None

    def write(self, record: EvaluationRecord) -> None:
        """See `evalkit.training.Sink`."""
        assert self.lines is not None  # the training has begun
        self.lines.write(record.to_dict())

    def close(self) -> None:
        """The run closes its logs itself."""


def scenario_callback(
    config: TrainConfig,
    folder: Path,
    out: Path,
    data: TrainingData,
    step: TrainStep,
    processes: Processes,
    sink: LogSink,
) -> EvalCallback | None:
    """The callback that measures `evaluation.scenario`; None where the configuration names none.

    Args:
        config: the configuration; folder: its own, where the scenario's path starts.
        out: the run folder, seen by all processes.
        data, step, processes: of the run.
        sink: takes the records.

    Raises:
        InputError: the scenario is broken or has no texts.
    """
    plan = config.evaluation
    if plan is None or plan.scenario is None:
        return None
    model = ModelInTraining(
        name=config.name,
        tokenizer=data.tokenizer,
        tokenizer_sha256=sha256_bytes(data.tokenizer_json),
        max_length=config.model.max_length,
        counts=_training_counts(config.name, data),
    )
    triggers: list[Trigger] = [EveryNSteps(plan.every), AtEnd()]
    if plan.on_loss_scale_drop:
        triggers.append(OnLossScaleDrop())
    return EvalCallback(
        step.network,
        validation_of_scenario(folder / plan.scenario, model),
        [sink],
        triggers=triggers,
        ranks=Ranks.of_mindspore(out / ".ranks") if processes.count > 1 else None,
    )


def _training_counts(name: str, data: TrainingData) -> Counts:
    """As the exported bundle will hold them, with the digest that it will have."""
    with np.load(io.BytesIO(data.token_counts), allow_pickle=False) as archive:
        tokens = archive["counts"].astype(np.int64)
    with gzip.open(io.BytesIO(data.word_counts), "rt", encoding="utf-8", newline="\n") as stream:
        words = parse_word_counts(stream)
    return Counts(
        source=name,
        digest=f"{sha256_bytes(data.token_counts)}+{sha256_bytes(data.word_counts)}",
        tokens=tokens,
        tokenizer_sha256=sha256_bytes(data.tokenizer_json),
        words=words,
    )
