"""Writing a run's checkpoints, and taking one up again."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mindspore as ms

from evalkit.bundle import WEIGHTS, TokenizerSpec
from evalkit.canonical import sha256_bytes, sha256_json
from evalkit.files import write_json_atomic
from trainer.checkpoint import (
    STATE,
    Checkpoint,
    Probe,
    ResumeState,
    RunFiles,
    prune,
    step_folder,
)
from trainer.config import TrainConfig
from trainer.data.cursor import Cursor
from trainer.data.pipeline import TrainingData
from trainer.model.weights import load_weights, weights_bytes, weights_of, without_padding
from trainer.run_log import BEST
from trainer.step import TrainStep
from trainer.training_state import random_state, restore_state, state_bytes
from trainer.validation import Validation


@dataclass
class Counters:
    """What a run counts.

    Attributes:
        step: steps done.
        next_batch: where the data goes on.
        tokens: input positions trained on, padding not counted.
        elapsed_ns: since the first step, over all parts of the run.
        skipped_in_a_row: the last steps that were skipped.
        loss: of the last step whose loss was a number, None before it.
    """

    step: int = 0
    next_batch: Cursor = field(default_factory=Cursor)
    tokens: int = 0
    elapsed_ns: int = 0
    skipped_in_a_row: int = 0
    loss: float | None = None


class Saver:
    """Writes the checkpoints of one run."""

    def __init__(
        self, config: TrainConfig, data: TrainingData, step: TrainStep, validation: Validation, out: Path
    ) -> None:
        self._config, self._data, self._step, self._validation, self.out = (
            config,
            data,
            step,
            validation,
            out,
        )
        probe, tokenizer = data.probe, data.tokenizer
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

    def due(self, number: int, evaluated: bool) -> bool:
        """Whether step `number` gets a checkpoint."""
        plan = self._config.checkpoints
        if number == self._config.steps:
            return True
        if plan is None:
            return False
        best = plan.keep_best is not None and evaluated and self._validation.improved
        return number % plan.every == 0 or best

    def save(self, counters: Counters) -> Path:
        """Write the checkpoint of the step that was just done, best.json, and remove what needn't be kept."""
        plan, best = self._config.checkpoints, self._validation.best
        folder = step_folder(self.out, counters.step)
        weights = without_padding(weights_of(self._step.network), self.files.model.vocab_size)
        self.files.write(folder, weights_bytes(weights), self._facts(counters), self._state(counters))
        keep_best = plan is not None and plan.keep_best is not None
        if keep_best and best is not None and best[0] == counters.step:
            self._write_best(best)
        if plan is not None:
            prune(self.out, plan.keep_last, best[0] if keep_best and best is not None else None)
        return folder

    def take_up(self, checkpoint: Checkpoint) -> Counters:
        """Put model, optimizer, loss scale and generators into the state of a checkpoint."""
        state = checkpoint.meta.resume
        assert state is not None  # find_checkpoint passes no other on
        step = self._step
        load_weights(step.network, checkpoint.path / WEIGHTS)
        restore_state(step, checkpoint.path / STATE, state.random)
        step.optimizer.restore(state.updates)
        step.scale.restore(state.loss_scale, state.loss_scale_counter)
        if state.best_step is not None and state.best_value is not None:
            self._validation.best = (state.best_step, state.best_value)
        return Counters(
            step=state.step,
            next_batch=Cursor(state.epoch, state.batch),
            tokens=state.tokens,
            elapsed_ns=state.elapsed_ns,
            skipped_in_a_row=state.skipped_in_a_row,
            loss=checkpoint.meta.training["final_loss"],
        )

    def settle_best(self) -> None:
        """Let best.json name the best of the part of the run that is kept."""
        best = self._validation.best
        if best is not None and step_folder(self.out, best[0]).is_dir():
            self._write_best(best)
        else:
            (self.out / BEST).unlink(missing_ok=True)

    def _write_best(self, best: tuple[int, float]) -> None:
        write_json_atomic(self.out / BEST, {"step": best[0], "metric": "perplexity/token", "value": best[1]})

    def _state(self, counters: Counters) -> tuple[ResumeState, bytes]:
        generators = random_state()
        best_step, best_value = self._validation.best or (None, None)
        state = ResumeState(
            step=counters.step,
            epoch=counters.next_batch.epoch,
            batch=counters.next_batch.batch,
            tokens=counters.tokens,
            elapsed_ns=counters.elapsed_ns,
            updates=self._step.optimizer.applied,
            skipped_in_a_row=counters.skipped_in_a_row,
            loss_scale=self._step.scale.value,
            loss_scale_counter=self._step.scale.counter,
            best_step=best_step,
            best_value=best_value,
            random=generators.scalars,
        )
        return state, state_bytes(self._step, generators)

    def _facts(self, counters: Counters) -> dict[str, Any]:
        return {
            "config_sha256": sha256_json(self._config.model_dump()),
            "data_sha256": self._data.train_sha256,
            "validation_sha256": self._data.validation_sha256,
            "data": self._data.facts,
            "steps": counters.step,
            "seed": self._config.seed,
            "final_loss": counters.loss,
            "final_loss_scale": self._step.scale.value,
            "versions": {"mindspore": ms.__version__},
        }
