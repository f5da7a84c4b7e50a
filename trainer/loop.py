"""The training loop: data in, checkpoints and a log out."""

import math
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import mindspore as ms
import orjson

from evalkit.bundle import TokenizerSpec
from evalkit.canonical import sha256_bytes, sha256_json
from evalkit.errors import InputError
from evalkit.files import write_json_atomic
from trainer.checkpoint import Probe, RunFiles, prune, saved_steps, step_folder
from trainer.config import TrainConfig
from trainer.data.cursor import Cursor
from trainer.data.pipeline import TrainingData, prepare
from trainer.model.decoder import CausalLM
from trainer.model.weights import initialise, weights_bytes, weights_of
from trainer.progress import TrainingProgress, training_progress
from trainer.step import StepResult, TrainStep


@dataclass(frozen=True)
class TrainSummary:
    """How a run ended; `perplexity` is that of the last validation, None where there was none."""

    out: Path
    checkpoint: Path
    steps: int
    final_loss: float
    perplexity: float | None
    seconds: float


def train(config: TrainConfig, folder: Path, out: Path) -> TrainSummary:
    """Train a model from its configuration.

    The same configuration, data and machine give bit-identical weights.

    Args:
        config: the configuration.
        folder: relative paths of the configuration start here.
        out: the run folder: checkpoints/step-N/, log.jsonl, evaluations.jsonl, best.json.

    Raises:
        InputError: bad data, an `out` that holds a run already, or a loss that isn't a number.
    """
    if saved_steps(out):
        raise InputError(f"{out}: holds checkpoints already; remove the folder or choose another --out")
    started = time.monotonic()
    data = prepare(config, folder)
    spec = config.model.spec(data.tokenizer.vocab_size)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(config.seed)
    model = CausalLM(spec, config.model.dropout)
    initialise(model, spec, config.seed)
    model.set_train(True)
    run = _Run(config, data, TrainStep(model, config), model, out)
    out.mkdir(parents=True, exist_ok=True)
    with (
        (out / "log.jsonl").open("wb") as log,
        (out / "evaluations.jsonl").open("wb") as evaluations,
        training_progress(config.steps) as progress,
    ):
        run.run(log, evaluations, progress)
    return TrainSummary(
        out=out,
        checkpoint=step_folder(out, config.steps),
        steps=config.steps,
        final_loss=run.loss,
        perplexity=run.perplexity,
        seconds=time.monotonic() - started,
    )


class _Run:
    """One run's moving parts."""

    def __init__(
        self, config: TrainConfig, data: TrainingData, step: TrainStep, model: CausalLM, out: Path
    ) -> None:
        self.config, self.data, self.train_step, self.model, self.out = config, data, step, model, out
        self.loss = math.nan
        self.perplexity: float | None = None
        self.best: tuple[int, float] | None = None
        probe = data.probe
        tokenizer = data.tokenizer
        self.files = RunFiles(
            name=config.name,
            model=config.model.spec(tokenizer.vocab_size),
            tokenizer=TokenizerSpec(
                sha256=sha256_bytes(data.tokenizer_json),
                prefix_token=tokenizer.prefix_token,
                end_token=tokenizer.end_token,
                chat_template=tokenizer.chat_template,
            ),
            config=config.model_dump(),
            tokenizer_json=data.tokenizer_json,
            token_counts=data.token_counts,
            word_counts=data.word_counts,
            probe=Probe(probe.token_ids, probe.targets, probe.positions, probe.segments),
        )

    def run(self, log: IO[bytes], evaluations: IO[bytes], progress: TrainingProgress) -> None:
        """All steps."""
        stream = self.data.batches(self.config, Cursor())
        started = time.monotonic_ns()
        tokens = 0
        scale = self.train_step.scale.value
        for step in range(1, self.config.steps + 1):
            began = time.monotonic_ns()
            places, parts = zip(*islice(stream, self.config.accumulation), strict=True)
            epoch = places[0].epoch
            result = self.train_step(step, list(parts))
            now = time.monotonic_ns()
            new_tokens = sum(batch.tokens for batch in parts)
            tokens += new_tokens
            self._check_loss(step, result)
            self.loss = result.loss
            entry = {
                "step": step,
                "epoch": epoch,
                "loss": result.loss,
                "loss_scale": result.loss_scale,
                "overflow": result.overflow,
                "grad_norm": result.grad_norm,
                "learning_rate": result.learning_rate,
                "tokens": tokens,
                "tokens_per_s": new_tokens / (now - began) * 1e9,
                "sample_ids": [record_id for batch in parts for record_id in batch.record_ids],
                "elapsed_ns": now - started,
            }
            _write_line(log, entry)
            progress.step(step, result.loss, tokens)
            dropped = (
                f"{scale:g} -> {self.train_step.scale.value:g}"
                if self.train_step.scale.value < scale
                else None
            )
            scale = self.train_step.scale.value
            improved = self._evaluate(step, epoch, dropped, evaluations)
            self._save(step, improved)

    def _check_loss(self, step: int, result: StepResult) -> None:
        if math.isfinite(result.loss):
            return
        saved = saved_steps(self.out)
        kept = f"the last checkpoint is step-{saved[-1]}" if saved else "there is no checkpoint yet"
        raise InputError(
            f"step {step}: the loss is {result.loss}; lower optimizer.learning_rate or optimizer.clip_norm, "
            f"or look at the samples that log.jsonl names ({kept})"
        )

    def _evaluate(self, step: int, epoch: int, dropped: str | None, sink: IO[bytes]) -> bool:
        """Measure the validation data if this step asks for it; True where the model is the best so far."""
        plan = self.config.evaluation
        if plan is None:
            return False
        regular = step % plan.every == 0 or step == self.config.steps
        after_drop = plan.on_loss_scale_drop and dropped is not None
        if not regular and not after_drop:
            return False
        began = time.monotonic_ns()
        self.perplexity = self.train_step.perplexity(self.data.validation)
        entry = {
            "step": step,
            "epoch": epoch,
            "trigger": "loss_scale_drop" if after_drop else "every",
            "reason": dropped if after_drop else f"every {plan.every} steps",
            "loss_scale": self.train_step.scale.value,
            "metrics": [{"name": "perplexity/token", "value": self.perplexity}],
            "elapsed_ns": time.monotonic_ns() - began,
        }
        _write_line(sink, entry)
        if self.perplexity is None or (self.best is not None and self.perplexity >= self.best[1]):
            return False
        self.best = (step, self.perplexity)
        return True

    def _save(self, step: int, improved: bool) -> None:
        plan = self.config.checkpoints
        keep_best = plan is not None and plan.keep_best is not None
        due = step == self.config.steps or (plan is not None and step % plan.every == 0)
        if not due and not (keep_best and improved):
            return
        self.files.write(
            step_folder(self.out, step), weights_bytes(weights_of(self.model)), self._facts(step)
        )
        if keep_best and improved and self.best is not None:
            best = {"step": step, "metric": "perplexity/token", "value": self.best[1]}
            write_json_atomic(self.out / "best.json", best)
        if plan is not None:
            prune(self.out, plan.keep_last, self.best[0] if keep_best and self.best else None)

    def _facts(self, step: int) -> dict[str, Any]:
        return {
            "config_sha256": sha256_json(self.config.model_dump()),
            "data_sha256": self.data.train_sha256,
            "validation_sha256": self.data.validation_sha256,
            "data": self.data.facts,
            "steps": step,
            "seed": self.config.seed,
            "final_loss": self.loss,
            "final_loss_scale": self.train_step.scale.value,
            "versions": {"mindspore": ms.__version__},
        }


def _write_line(stream: IO[bytes], entry: dict[str, Any]) -> None:
    stream.write(orjson.dumps(entry) + b"\n")
    stream.flush()
