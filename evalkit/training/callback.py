"""`EvalCallback`: evaluations inside a MindSpore training, which they leave bit for bit as it was."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from mindspore import nn
from mindspore.train import Callback

from evalkit.backends.checkpoint import CheckpointBackend, LogitsFunction, count_inputs
from evalkit.checks import function, has, instance, several
from evalkit.console import say
from evalkit.errors import InputError
from evalkit.metrics.context import ResampleSetup
from evalkit.training.arguments import argument
from evalkit.training.decisions import Decisions
from evalkit.training.distributed import FailedRankError, MissingRankError, Ranks
from evalkit.training.drift import Drift
from evalkit.training.evaluation import Measurement, Validation, with_robustness
from evalkit.training.loss_scale import LossScaleReader, loss_of
from evalkit.training.names import MeasuredNames
from evalkit.training.panel import TriggerPanel
from evalkit.training.record import EvaluationRecord, Sink, finite, metric_entry
from evalkit.training.restore import untouched
from evalkit.training.selection import EarlyStop, KeepBest
from evalkit.training.triggers import AtEnd, EveryNSteps, OnLossScaleDrop, StepEvent, Trigger


class EvalCallback(Callback):  # type: ignore[misc]
    """Measures the network in training when a trigger asks for it.

    Works in `Model.train`, `Model.fit` and evalkit's own trainer, in graph and PyNative mode. In sink mode MindSpore tells
    of a step only once a sink: the callback says so at the start, and triggers see those steps alone.

    A callback may serve several trainings: each begins with triggers, decisions, drift window and records as new. A call of
    `Model.train` with an `initial_epoch` goes on with the training before; triggers begin anew there too, since
    MindSpore counts its steps from 1.

    Attributes:
        records: of the present training, in order.
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
            sinks: take the records; at least one.
            triggers: None: every 500 steps, on a drop of the loss scale, and at the end.
            logits: how to call the network; see `CheckpointBackend`.
            metrics: names to keep in the records; None: all.
            cooldown: steps after a forced evaluation in which no other is forced.
            loss_scaler, loss_scale_every: see `LossScaleReader`.
            early_stop, keep_best: decide by a metric's interval.
            robustness: perturbations under which the texts are measured too, at each evaluation; as in a scenario, e.g.
                `{"perturb": "typos", "rate": 0.05}`.
            on_error: whether the training ends when an evaluation fails, or a trigger, a sink or a function to save does;
                it is recorded in both cases.
            ranks: of a distributed training, which then share the work; rank 0 writes the records.
            drift: also measures the texts re-weighted to the current training batches.

        Raises:
            InputError: an argument is of the wrong kind, or a metric is named that won't be measured.
        """
        super().__init__()
        if on_error not in ("continue", "stop"):
            raise InputError(f"on_error: continue or stop is needed (got {on_error!r})")
        self._network = instance("network", network, nn.Cell, "a mindspore.nn.Cell")
        instance("validation", validation, Validation, "what evalkit.training.validation(...) gives")
        if logits is not None:
            function("logits", logits, "a function of network and token ids")
        count_inputs(network, logits)
        found = _checked(sinks)
        for name, value, kind in (("ranks", ranks, Ranks), ("drift", drift, Drift)):
            if value is not None:
                instance(name, value, kind, f"evalkit.training.{kind.__name__}(...)")
        if several("robustness", robustness, "mappings"):
            validation = with_robustness(validation, robustness)
        names = MeasuredNames(validation)
        self._metrics = None if metrics is None else names.chosen("metrics", metrics)
        self._decisions = Decisions(keep_best, early_stop, names)
        self._validation, self._ranks, self._logits = validation, ranks, logits
        self._sinks = found if ranks is None or ranks.rank == 0 else ()
        default = (EveryNSteps(), OnLossScaleDrop(), AtEnd())
        self._panel = TriggerPanel(default if triggers is None else triggers, cooldown)
        self._shared = ranks if ranks is not None and ranks.size > 1 else None
        if self._shared is not None and "loss" in self._panel.reads and not self._shared.communicates:
            raise InputError(
                "triggers: one looks at the loss, which each rank has of its own batches; make the ranks by "
                "Ranks.of_mindspore, so that they can share it"
            )
        self._stop_on_error, self._drift = on_error == "stop", drift
        self._scale = LossScaleReader(loss_scaler, every=loss_scale_every)
        self._backend: CheckpointBackend | None = None
        self._trainings = 0
        self.records: list[EvaluationRecord] = []

    def on_train_begin(self, run_context: Any) -> None:
        """Look at the training; the network is called once on two tokens.

        Raises:
            InputError: the network doesn't give logits, or a feature fails; with what to do.
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
        self._trainings += 1
        self._step = int(argument(arguments, "cur_step_num", 0) or 0)
        self._stepped, self._evaluated_at = False, self._step
        # Problems of sinks wait for the next record; failures of triggers for the first step.
        self._pending: list[str] = []
        self._failures = self._panel.begin()
        self._loss_scale = self._scale.at_start(arguments)
        if self._loss_scale is not None:
            self._failures += self._panel.start(StepEvent(self._step, 1, loss_scale=self._loss_scale))

    def on_train_step_end(self, run_context: Any) -> None:
        """Show the step to every trigger; evaluate where one asks for it."""
        arguments = run_context.original_args()
        event = self._event(arguments)
        if not self._stepped and event.epoch <= 1:  # else an `initial_epoch` goes on with the training before
            self.records.clear()
            self._decisions.begin()
            if self._drift is not None:
                self._drift.forget()
        self._step, self._stepped = event.step, True
        if self._drift is not None:
            self._drift.see(arguments)
        asked, failures = self._panel.ask(event)
        for name, error in (*self._failures, *failures):
            self._trigger_failed(run_context, event, name, error)
        self._failures = []
        if asked is not None:
            self._evaluate(run_context, event, *asked)

    def on_train_end(self, run_context: Any) -> None:
        """The evaluation at the end, where one is wanted and the last step had none."""
        if self._panel.at_end and self._stepped and self._evaluated_at != self._step:
            event = self._event(run_context.original_args())
            self._evaluate(run_context, event, AtEnd.name, "end of the training")
        for warning in (*self._pending, *self._decisions.never_made()):
            say(f"evalkit: {warning}")
        if self._stepped and not self.records:
            say(
                f"evalkit: nothing was measured: no trigger asked for an evaluation in {self._step} steps; "
                "give AtEnd() or EveryNSteps of fewer steps"
            )
        with untouched(self._network):
            for sink in self._sinks:
                try:
                    sink.close()
                except Exception as error:  # a sink may be the user's
                    say(f"evalkit: {_sink_problem(sink, error)}")

    def _event(self, arguments: Any) -> StepEvent:
        step = int(arguments.cur_step_num)
        batches = int(argument(arguments, "batch_num", 0) or 0)
        epochs = int(argument(arguments, "epoch_num", 0) or 0)
        loss = scale = overflow = None
        if "loss" in self._panel.reads:
            loss = loss_of(argument(arguments, "net_outputs"))
            if loss is not None and self._shared is not None:
                loss = self._shared.mean(loss)  # each has its own; all must see the same
        if self._panel.reads & {"loss_scale", "overflow"}:
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

    def _measure(self, key: str) -> tuple[Measurement, ResampleSetup | None, str]:
        """The metrics, the weights that they were measured under, and the digest of the network's weights."""
        assert self._backend is not None  # the training has begun
        check = self._validation
        if self._drift is not None:
            check = check.reweighted(self._drift.setup(self._ranks, key))
        if self._ranks is None:
            measurement = check.measure(self._backend)
        else:
            measurement = self._ranks.measure(check, self._backend, key)
        return measurement, check.context.resample, self._backend.model_digest

    def _evaluate(self, run_context: Any, event: StepEvent, trigger: str, reason: str) -> None:
        began = time.perf_counter_ns()
        key = f"{self._trainings}.{event.step}"
        measurement: Measurement | None = None
        resample: ResampleSetup | None = None
        digest: str | None = None
        error: str | None = None
        problems, self._pending = self._pending, []
        with untouched(self._network):
            try:
                measurement, resample, digest = self._measure(key)
            except MissingRankError:
                raise  # the training's own communication would only hang
            except Exception as problem:  # the training is worth more than its evaluation
                error = self._told(problem)
            if self._shared is not None:
                error = self._shared.agree(key, error)
            if error is not None:
                measurement = None
                sys.stderr.write(f"evalkit: evaluation after step {event.step} failed: {error}\n")
                stop = None
            else:
                assert measurement is not None
                failures, stop = self._decisions.take(event.step, measurement)
                problems += failures
            record = self._record(event, trigger, reason, measurement, resample, digest, error, problems)
            record = replace(record, elapsed_ns=time.perf_counter_ns() - began)
            self._panel.suppressed, self._evaluated_at = 0, event.step
            failed = self._write(record) or error is not None or self._decisions.save_failed
            if self._shared is not None and self._stop_on_error:
                failed = any(self._shared.exchange(key, "failed", failed))
        if stop is not None:
            say(f"evalkit: {stop}: stopping")
        if stop is not None or (failed and self._stop_on_error):
            run_context.request_stop()

    def _told(self, problem: Exception) -> str:
        """An error in one line; on several ranks with the rank that it happened on."""
        if isinstance(problem, FailedRankError):
            return str(problem)
        line = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return line if self._shared is None else f"rank {self._shared.rank}: {line}"

    def _trigger_failed(self, run_context: Any, event: StepEvent, name: str, error: str) -> None:
        problems, self._pending = self._pending, []
        sys.stderr.write(f"evalkit: after step {event.step}: {error}\n")
        with untouched(self._network):
            self._write(self._record(event, name, "the trigger failed", None, None, None, error, problems))
        if self._stop_on_error:
            run_context.request_stop()

    def _record(
        self,
        event: StepEvent,
        trigger: str,
        reason: str,
        measurement: Measurement | None,
        resample: ResampleSetup | None,
        digest: str | None,
        error: str | None,
        problems: Sequence[str],
    ) -> EvaluationRecord:
        drift = {} if resample is None else {"problem": resample.problem, **resample.details}
        return EvaluationRecord(
            step=event.step,
            epoch=event.epoch - 1,
            trigger=trigger,
            reason=reason,
            loss_scale=finite(self._loss_scale),
            metrics=tuple(
                metric_entry(metric)
                for metric in (() if measurement is None else measurement.metrics)
                if self._metrics is None or metric.name in self._metrics
            ),
            weights_sha256=digest,
            effective_sample_size=drift.pop("effective_sample_size", None),
            uncovered_mass=drift.pop("uncovered_mass", None),
            error=error,
            problems=tuple(problems),
            details={
                "suppressed": self._panel.suppressed,
                "loss_scale_lag_steps": self._scale.lag_steps,
                **({"drift": drift} if drift else {}),
            },
        )

    def _write(self, record: EvaluationRecord) -> bool:
        """Give a record to every sink; whether one failed. What failed stands in this record here, in the next one there."""
        for sink in self._sinks:
            try:
                sink.write(record)
            except Exception as error:  # a sink may be the user's, or its server away
                problem = f"step {record.step}: {_sink_problem(sink, error)}"
                sys.stderr.write(f"evalkit: {problem}\n")
                self._pending.append(problem)
        self.records.append(replace(record, problems=(*record.problems, *self._pending)))
        return bool(self._pending)


def _checked(sinks: Any) -> tuple[Sink, ...]:
    found = several("sinks", sinks, "sinks")
    if not found:
        raise InputError(
            'sinks: there is none, so no record would be kept; give JsonlSink("evaluations.jsonl")'
        )
    for place, sink in enumerate(found):
        has(f"sinks: {place}", sink, ("write", "close"), "a sink")
        function(f"sinks: {place}: write", sink.write, "a method that takes a record", inputs=1)
        function(f"sinks: {place}: close", sink.close, "a method without arguments", inputs=0)
    return found


def _sink_problem(sink: Sink, error: Exception) -> str:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"the sink {type(sink).__name__} failed: {reason:.300}"
