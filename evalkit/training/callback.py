"""`EvalCallback`: evaluations inside a MindSpore training, which they leave bit for bit as it was."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mindspore.train import Callback

from evalkit.backends.checkpoint import CheckpointBackend, LogitsFunction
from evalkit.console import say
from evalkit.errors import InputError
from evalkit.metrics.context import ResampleSetup
from evalkit.training.arguments import argument
from evalkit.training.distributed import MissingRankError, Ranks
from evalkit.training.drift import Drift
from evalkit.training.evaluation import Measurement, Validation, with_robustness
from evalkit.training.loss_scale import LossScaleReader, loss_of
from evalkit.training.record import EvaluationRecord, Sink, metric_entry
from evalkit.training.restore import untouched
from evalkit.training.selection import EarlyStop, KeepBest
from evalkit.training.triggers import AtEnd, EveryNSteps, OnLossScaleDrop, StepEvent, Trigger


class EvalCallback(Callback):  # type: ignore[misc]
    """Measures the network in training when a trigger asks for it.

    Works in `Model.train`, `Model.fit` and evalkit's own trainer, in graph and PyNative mode. In sink mode MindSpore tells
    of a step only once a sink: the callback says so at the start, and triggers see those steps alone.
    """

    def __init__(
        self,
        network: Any,
        validation: Validation,
        sinks: Sequence[Sink],
        *,
        triggers: Sequence[Trigger] | None = None,
        logits: LogitsFunction | None = None,
        metrics: Sequence[str] | None = None,
        cooldown: int = 100,
        loss_scaler: Any = None,
        loss_scale_every: int = 10,
        early_stop: EarlyStop | None = None,
        keep_best: KeepBest | None = None,
        robustness: Sequence[Mapping[str, Any]] = (),
        on_error: Literal["continue", "stop"] = "continue",
        ranks: Ranks | None = None,
        drift: Drift | None = None,
    ) -> None:
        """Prepare; the network is first run when the training begins.

        Args:
            network: whose logits are measured, inside or outside the training network.
            validation: the texts and how they are measured.
            sinks: take the records.
            triggers: None: every 500 steps, on a drop of the loss scale, and at the end.
            logits: how to call the network; see `CheckpointBackend`.
            metrics: names to keep in the records; None: all.
            cooldown: steps after a forced evaluation in which no other is forced.
            loss_scaler, loss_scale_every: see `LossScaleReader`.
            early_stop, keep_best: decide by a metric's interval.
            robustness: perturbations under which the texts are measured too, at each evaluation; as in a scenario, e.g.
                `{"perturb": "typos", "rate": 0.05}`.
            on_error: whether an evaluation that fails ends the training; it is recorded in both cases.
            ranks: of a distributed training, which then share the work; rank 0 writes the records.
            drift: also measures the texts re-weighted to the current training batches.
        """
        super().__init__()
        if on_error not in ("continue", "stop"):
            raise InputError(f"on_error: continue or stop is needed (got {on_error!r})")
        if isinstance(metrics, str):
            raise InputError(f"metrics: a list of names is needed (got {metrics!r})")
        if cooldown < 0:
            raise InputError(f"cooldown: 0 or more steps are needed (got {cooldown})")
        if robustness:
            validation = with_robustness(validation, robustness)
        self._network, self._validation, self._ranks = network, validation, ranks
        self.sinks = tuple(sinks) if ranks is None or ranks.rank == 0 else ()
        self._triggers = (
            tuple(triggers) if triggers is not None else (EveryNSteps(), OnLossScaleDrop(), AtEnd())
        )
        self._logits, self._metrics = logits, None if metrics is None else frozenset(metrics)
        self._cooldown, self._stop_on_error = cooldown, on_error == "stop"
        self._reads = frozenset[str]().union(*(trigger.reads for trigger in self._triggers))
        self._scale = LossScaleReader(loss_scaler, every=loss_scale_every)
        self._early_stop, self._keep_best = early_stop, keep_best
        self._drift = drift
        self._backend: CheckpointBackend | None = None
        self._forced_at: int | None = None
        self._evaluated_at = self._step = 0
        self._loss_scale: float | None = None
        self._suppressed = 0
        self.records: list[EvaluationRecord] = []

    def on_train_begin(self, run_context: Any) -> None:
        """Look at the training; the network is called once on two tokens.

        Raises:
            InputError: the network doesn't give logits, with what to do.
        """
        arguments = run_context.original_args()
        if self._backend is None:
            check = self._validation
            with untouched(self._network):
                self._backend = CheckpointBackend(
                    self._network,
                    vocab_size=check.tokenizer.vocab_size,
                    max_length=check.window.length,
                    logits=self._logits,
                )
            self._validation = check.in_precision(self._backend.precision)
        if self._drift is not None:
            with untouched(None):  # features may be the user's code
                self._drift.begin(self._validation.items, self._validation.tokenizer)
        if argument(arguments, "dataset_sink_mode", False):
            say(
                "evalkit: data sink mode: MindSpore reports steps once a sink, so triggers see only the last step of each; "
                "give sink_size=1 or dataset_sink_mode=False to watch every step"
            )
        self._loss_scale = self._scale.at_start(arguments)
        if self._loss_scale is not None and "loss_scale" in self._reads:
            self._ask(StepEvent(self._step, 1, loss_scale=self._loss_scale))

    def on_train_step_end(self, run_context: Any) -> None:
        """Show the step to every trigger; evaluate where one asks for it."""
        arguments = run_context.original_args()
        event = self._event(arguments)
        self._step = event.step
        if self._drift is not None:
            self._drift.see(arguments)
        asked = self._ask(event)
        if asked is not None:
            self._evaluate(run_context, event, *asked)

    def on_train_end(self, run_context: Any) -> None:
        """The evaluation at the end, where one is wanted and the last step had none."""
        wanted = any(isinstance(trigger, AtEnd) for trigger in self._triggers)
        if wanted and self._step and self._evaluated_at != self._step:
            arguments = run_context.original_args()
            event = self._event(arguments)
            self._evaluate(run_context, event, AtEnd.name, "end of the training")
        for sink in self.sinks:
            sink.close()

    def _event(self, arguments: Any) -> StepEvent:
        step = int(arguments.cur_step_num)
        batches = int(argument(arguments, "batch_num", 0) or 0)
        epochs = int(argument(arguments, "epoch_num", 0) or 0)
        loss = scale = overflow = None
        if "loss" in self._reads:
            loss = loss_of(argument(arguments, "net_outputs"))
        if self._reads & {"loss_scale", "overflow"}:
            reading = self._scale.read(arguments, step)
            scale, overflow = reading.value, reading.overflow
            self._loss_scale = scale if scale is not None else self._loss_scale
        return StepEvent(
            step=step,
            epoch=int(argument(arguments, "cur_epoch_num", 1) or 1),
            epoch_ends=batches > 0 and step % batches == 0,
            total_steps=batches * epochs or None,
            loss=loss,
            loss_scale=scale,
            overflow=overflow,
        )

    def _ask(self, event: StepEvent) -> tuple[str, str] | None:
        """The first trigger that fires, with its reason; every trigger sees the step. Trouble goes before schedules."""
        planned: tuple[str, str] | None = None
        forced: tuple[str, str] | None = None
        for trigger in self._triggers:
            reason = trigger.see(event)
            if reason is None:
                continue
            if not trigger.forced:
                planned = planned or (trigger.name, reason)
            elif self._forced_at is not None and event.step - self._forced_at <= self._cooldown:
                self._suppressed += 1
            else:
                forced = forced or (trigger.name, reason)
        if forced is not None:
            self._forced_at = event.step
        return forced or planned

    def _weights(self, step: int) -> ResampleSetup | None:
        found = None if self._drift is None else self._drift.setup()
        return found if self._ranks is None else self._ranks.first_of(found, step)

    def _measure(self, step: int, resample: ResampleSetup | None) -> Measurement:
        assert self._backend is not None  # the training has begun
        check = self._validation.reweighted(resample)
        if self._ranks is None:
            return check.measure(self._backend)
        return self._ranks.measure(check, self._backend, step)

    def _evaluate(self, run_context: Any, event: StepEvent, trigger: str, reason: str) -> None:
        assert self._backend is not None  # the training has begun
        began = time.perf_counter_ns()
        measurement: Measurement | None = None
        resample: ResampleSetup | None = None
        error: str | None = None
        digest: str | None = None
        with untouched(self._network):
            try:
                resample = self._weights(event.step)
                measurement = self._measure(event.step, resample)
                digest = self._backend.model_digest
            except MissingRankError:
                raise  # the training's own communication would only hang
            except Exception as problem:  # the training is worth more than its evaluation
                error = f"{type(problem).__name__}: {problem}".splitlines()[0]
        metrics = () if measurement is None else measurement.metrics
        drift = {} if resample is None else {"problem": resample.problem, **resample.details}
        record = EvaluationRecord(
            step=event.step,
            epoch=event.epoch - 1,
            trigger=trigger,
            reason=reason,
            loss_scale=self._loss_scale,
            metrics=tuple(
                metric_entry(metric)
                for metric in metrics
                if self._metrics is None or metric.name in self._metrics
            ),
            weights_sha256=digest,
            effective_sample_size=drift.pop("effective_sample_size", None),
            uncovered_mass=drift.pop("uncovered_mass", None),
            error=error,
            elapsed_ns=time.perf_counter_ns() - began,
            details={
                "suppressed": self._suppressed,
                "loss_scale_lag_steps": self._scale.lag_steps,
                **({"drift": drift} if drift else {}),
            },
        )
        self._suppressed, self._evaluated_at = 0, event.step
        self.records.append(record)
        for sink in self.sinks:
            sink.write(record)
        if error is not None:
            sys.stderr.write(f"evalkit: evaluation after step {event.step} failed: {error}\n")
            if self._stop_on_error:
                run_context.request_stop()
            return
        assert measurement is not None
        if self._keep_best is not None:
            self._keep_best.take(event.step, measurement.find(self._keep_best.metric))
        if self._early_stop is not None and self._early_stop.take(measurement.find(self._early_stop.metric)):
            say(
                f"evalkit: {self._early_stop.metric} got worse {self._early_stop.worse} times in a row: stopping"
            )
            run_context.request_stop()
