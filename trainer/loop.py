"""The training loop: data in, checkpoints and a log out."""

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mindspore.train import Callback

from evalkit.console import say
from evalkit.errors import IncompleteError, InputError
from evalkit.runs.interruption import terminable
from trainer.callbacks import TrainingEvents, load_callbacks
from trainer.checkpoint import (
    Checkpoint,
    kept_checkpoint,
    remove_leftovers,
    remove_step,
    saved_steps,
    step_folder,
)
from trainer.config import TrainConfig
from trainer.data.cursor import Cursor
from trainer.data.packing import Batch
from trainer.data.pipeline import TrainingData, prepare
from trainer.debugging import LayerWatch
from trainer.processes import Processes, start_processes
from trainer.profiling import StepProfiler
from trainer.progress import training_progress
from trainer.resume import find_checkpoint
from trainer.run_log import RunLogs, claimed, open_logs, storing
from trainer.saving import Counters, Saver
from trainer.scenario_evaluation import LogSink, scenario_callback
from trainer.setup import build_step, check_model
from trainer.sharding import compile_sharded
from trainer.step import StepResult, TrainStep
from trainer.validation import Validation

# So many steps without an update one after another mean that nothing is being learnt any more.
_MAX_SKIPPED_IN_A_ROW = 50


@dataclass(frozen=True)
class TrainSummary:
    """How a run ended.

    Attributes:
        out: the run folder.
        checkpoint: the last one.
        steps: done; fewer than configured where a callback asked for the end.
        final_loss: of the last step whose loss was a number, None where there was none.
        perplexity: of the last validation of this process, None where there was none.
        seconds: this process took.
        skipped: steps of this process whose gradients weren't finite, so that they changed no weight.
    """

    out: Path
    checkpoint: Path
    steps: int
    final_loss: float | None
    perplexity: float | None
    seconds: float
    skipped: int


def train(
    config: TrainConfig,
    folder: Path,
    out: Path,
    *,
    resume: bool = False,
    profile: bool = False,
    callbacks: Sequence[Callback] = (),
) -> TrainSummary:
    """Train a model from its configuration.

    The same configuration, data and machine give bit-identical weights, however often the run was broken off and
    resumed. With several processes (`msrun`) each calls this, and the first one writes.

    Args:
        config: the configuration.
        folder: relative paths of the configuration start here.
        out: the run folder: checkpoints/step-N/, log.jsonl, evaluations.jsonl,
            scenario.jsonl, best.json.
        resume: go on from the newest whole checkpoint in `out`; from the start where there is none.
        profile: record MindSpore's profiler for the steps of `config.profile` into `out`/profile.
        callbacks: called after those that the configuration names.

    Raises:
        InputError: bad data or configuration, an `out` that holds a run already, a loss that isn't a number, a full
            disk.
        IncompleteError: interrupted.
    """
    if saved_steps(out) and not resume:
        raise InputError(
            f"{out}: holds checkpoints already; go on with --resume, remove the folder or choose another --out"
        )
    started = time.monotonic()
    try:
        with terminable():
            data = prepare(config, folder)
            spec = config.model.spec(data.tokenizer.vocab_size)
            check_model(spec, config)
            used = [*load_callbacks(config.callbacks, folder), *callbacks]
            processes = start_processes(config)
            if config.parallel.splits_the_model:
                compile_sharded(config, spec)
            train_step = build_step(config, spec, processes.rank)
            validation = Validation(config.evaluation, config.steps, data, train_step)
            saver = Saver(config, data, train_step, validation, out)
            sink = LogSink()
            watcher = scenario_callback(config, folder, out, data, train_step, processes, sink)
            if watcher is not None:
                used.append(watcher)
            events = TrainingEvents(used, processes.data_config(config), data, train_step)
            profiler = StepProfiler(out / "profile", config.profile) if profile else None
            run = _Run(config, data, train_step, validation, saver, processes, events, profiler)
            with claimed(out) if processes.writes else nullcontext(), storing(out):
                found = find_checkpoint(out, config, data, saver.files.tokenizer.sha256) if resume else None
                counters = run.begin(found, out, resume=resume)
                with run.logs(out, counters.step, scenario=watcher is not None) as logs:
                    sink.lines = logs.scenario
                    run.run(counters, logs)
    except KeyboardInterrupt:
        raise IncompleteError(f"interrupted; {kept_checkpoint(out)}") from None
    return TrainSummary(
        out=out,
        checkpoint=step_folder(out, counters.step),
        steps=counters.step,
        final_loss=counters.loss,
        perplexity=validation.perplexity,
        seconds=time.monotonic() - started,
        skipped=run.skipped,
    )


class _Run:
    """One run's moving parts."""

    def __init__(
        self,
        config: TrainConfig,
        data: TrainingData,
        step: TrainStep,
        validation: Validation,
        saver: Saver,
        processes: Processes,
        events: TrainingEvents,
        profiler: StepProfiler | None,
    ) -> None:
        self.config, self.data, self.train_step, self.validation = config, data, step, validation
        self.saver, self.processes, self.events, self.profiler = saver, processes, events, profiler
        self.watch: LayerWatch | None = None
        self.skipped = 0

    def begin(self, found: Checkpoint | None, out: Path, *, resume: bool) -> Counters:
        """Take up the checkpoint, if there is one."""
        counters = Counters() if found is None else self.saver.take_up(found)
        if not self.processes.writes:
            return counters
        if found is not None:
            for damage in found.passed_over:
                say(f"passed over: {damage}")
            say(f"going on after step {counters.step} ({found.path})")
        elif resume:
            say(f"{out}: no checkpoint yet, starting with the first step")
        remove_leftovers(out)
        for later in saved_steps(out):
            if later > counters.step:
                # Damaged: it must not count among the last ones that are kept.
                remove_step(out, later)
        self.saver.settle_best()
        return counters

    def logs(self, out: Path, steps: int, *, scenario: bool) -> AbstractContextManager[RunLogs]:
        """The logs, if this process writes them."""
        if not self.processes.writes:
            return nullcontext(RunLogs())
        return open_logs(out, steps, shapes=self.config.debug, scenario=scenario)

    def run(self, counters: Counters, logs: RunLogs) -> None:
        """All steps that are left."""
        if self.config.debug:
            self.watch = LayerWatch(self.train_step.network, logs.shapes)
        stream = self.data.batches(self.processes.data_config(self.config), counters.next_batch)
        began = time.monotonic_ns() - counters.elapsed_ns
        recording = nullcontext() if self.profiler is None else closing(self.profiler)
        with training_progress(self.config.steps) as progress, self.events as events, recording:
            events.train_begin(counters.step)
            stopping = False
            while counters.step < self.config.steps and not stopping:
                places, batches = zip(*islice(stream, self.config.accumulation), strict=True)
                counters.next_batch = Cursor(places[-1].epoch, places[-1].batch + 1)
                scale = self.train_step.scale.value
                result = self._step(counters, places[0].epoch, batches)
                now = time.monotonic_ns() - began
                if logs.log is not None:
                    logs.log.write(_log_entry(counters, places[0].epoch, batches, result, now))
                    progress.step(counters.step, result.loss, counters.tokens)
                counters.elapsed_ns = now
                self._check(result, counters)
                fell = self.train_step.scale.value < scale
                record = self.validation.measure(
                    counters.step,
                    places[0].epoch,
                    f"{scale:g} -> {self.train_step.scale.value:g}" if fell else None,
                )
                if record is not None:
                    events.evaluated(self.validation.mean_loss)
                    if logs.evaluations is not None:
                        logs.evaluations.write(record)
                events.step_end(result)
                stopping = self.processes.any(events.stop_requested)
                if stopping or self.saver.due(counters.step, record is not None):
                    logs.sync()  # what a checkpoint counts is in the logs, also after a power cut
                    if self.processes.writes:
                        events.saved(counters.step, self.saver.save(counters))
            events.epoch_end()
            events.train_end()

    def _step(self, counters: Counters, epoch: int, batches: Sequence[Batch]) -> StepResult:
        counters.step += 1
        self.events.step_begin(counters.step, epoch, batches)
        if self.profiler is not None:
            self.profiler.before()
        if self.watch is not None:
            self.watch.begin(counters.step)
        own = [self.processes.share(batch, self.config.batch_size) for batch in batches]
        result = self.train_step(counters.step, own, sum(float(batch.weights.sum()) for batch in batches))
        if self.profiler is not None:
            self.profiler.after()
        counters.tokens += sum(batch.tokens for batch in batches)
        counters.skipped_in_a_row = counters.skipped_in_a_row + 1 if result.overflow else 0
        self.skipped += int(result.overflow)
        if math.isfinite(result.loss):
            counters.loss = result.loss
        return result

    def _check(self, result: StepResult, counters: Counters) -> None:
        remedy = "lower optimizer.learning_rate or optimizer.clip_norm, or look at the samples that log.jsonl names"
        if not math.isfinite(result.loss) and self.config.on_nan == "stop":
            raise InputError(
                f"step {counters.step}: the loss is {result.loss}; {remedy} ({kept_checkpoint(self.saver.out)}; `on_nan: skip` "
                "leaves such steps out)"
            )
        if counters.skipped_in_a_row >= _MAX_SKIPPED_IN_A_ROW:
            raise InputError(
                f"step {counters.step}: {_MAX_SKIPPED_IN_A_ROW} steps in a row had gradients that aren't finite, at last "
                f"with loss scale {result.loss_scale:g}; {remedy} ({kept_checkpoint(self.saver.out)})"
            )


def _log_entry(
    counters: Counters, epoch: int, batches: Sequence[Batch], result: StepResult, now_ns: int
) -> dict[str, Any]:
    tokens = sum(batch.tokens for batch in batches)
    return {
        "step": counters.step,
        "epoch": epoch,
        "loss": result.loss,
        "loss_scale": result.loss_scale,
        "overflow": result.overflow,
        "grad_norm": result.grad_norm,
        "learning_rate": result.learning_rate,
        "tokens": counters.tokens,
        "tokens_per_s": tokens / max(now_ns - counters.elapsed_ns, 1) * 1e9,
        "sample_ids": [record_id for batch in batches for record_id in batch.record_ids],
        "elapsed_ns": now_ns,
    }
