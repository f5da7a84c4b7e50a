"""`mindspore.train.Callback` in our loop: the same events, in the same order, with the same keys as in Model.train."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor
from mindspore.train import Callback, RunContext

# MindSpore 2.10 has no public names for these two; Model.train uses the very same.
from mindspore.train.callback import _CallbackManager, _InternalCallbackParam

from evalkit.errors import EvalkitError, InputError
from evalkit.metrics.references import load_reference
from trainer.config import TrainConfig
from trainer.data.cursor import Cursor
from trainer.data.packing import Batch
from trainer.data.pipeline import TrainingData
from trainer.step import StepResult, TrainStep, batch_tensors


def load_callbacks(references: Sequence[str], folder: Path) -> list[Callback]:
    """The callbacks that a configuration names.

    Args:
        references: `module:attr` each: a callback, its class, or a function without arguments that makes one.
        folder: modules are looked for here first.

    Raises:
        InputError: not found, can't be loaded, or no callback.
    """
    callbacks = []
    for reference in references:
        target = load_reference(reference, folder).target
        try:
            callback = target() if callable(target) and not isinstance(target, Callback) else target
        except Exception as error:  # a user's code may raise anything
            raise InputError(f"callbacks: {reference}: {type(error).__name__}: {error}") from None
        if not isinstance(callback, Callback):
            raise InputError(
                f"callbacks: {reference}: is {type(callback).__name__}, a mindspore.train.Callback is needed"
            )
        callbacks.append(callback)
    return callbacks


class TrainingEvents:
    """Tells callbacks what happens, in Model.train's order; use it as a context manager.

    on_train_begin; then for each epoch on_train_epoch_begin, for each step on_train_step_begin and
    on_train_step_end, on_train_epoch_end; on_train_end. A step belongs to the epoch of its first batch. There are no
    on_eval events; `eval_results` and `metrics` stand in the arguments as in Model.fit.

    `RunContext.original_args()` holds what Model.train puts there. `net_outputs` is (loss, overflow, scale), three
    Tensors on the host, the scale after the step's update, as from `nn.TrainOneStepWithLossScaleCell`.
    `train_network.scale_sense` is the live scale. Beyond MindSpore's keys: `sample_ids`, `grad_norm` (None after an
    overflow), `learning_rate`.
    """

    def __init__(
        self, callbacks: Sequence[Callback], config: TrainConfig, data: TrainingData, step: TrainStep
    ) -> None:
        self.config, self.data, self.step = config, data, step
        self._active = bool(callbacks)
        self._epoch: int | None = None
        self._stack = ExitStack()
        self._manager = _CallbackManager(list(callbacks))
        self.arguments = _InternalCallbackParam(
            train_network=step,
            network=step.network,
            optimizer=step.optimizer,
            loss_fn=None,
            loss_scale_mananger=None,  # MindSpore's own spelling
            train_dataset=data,
            train_dataset_element=None,
            list_callback=list(callbacks),
            mode="train",
            parallel_mode=ms.get_auto_parallel_context("parallel_mode"),
            device_number=config.parallel.devices,
            dataset_sink_mode=False,
            last_save_ckpt_step=None,
            latest_ckpt_file=None,
        )
        self._context = RunContext(self.arguments)

    def __enter__(self) -> "TrainingEvents":
        self._stack.enter_context(self._manager)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def stop_requested(self) -> bool:
        """Whether a callback asked for the end."""
        return bool(self._context.get_stop_requested())

    def train_begin(self, steps_done: int) -> None:
        """Before the first step of this process."""
        if self._active:
            batches = self._batches_in_epoch(0)
            steps = self.config.steps * self.config.accumulation
            self.arguments.update(
                cur_step_num=steps_done,
                initial_step=steps_done,
                epoch_num=-(-steps // batches),
                batch_num=max(1, batches // self.config.accumulation),
            )
        self._fire("on_train_begin")

    def step_begin(self, number: int, epoch: int, batches: Sequence[Batch]) -> None:
        """Before step `number`; ends the last epoch and begins a new one where the data does."""
        if epoch != self._epoch:
            self.epoch_end()
            self._epoch = epoch
            if self._active:
                in_epoch = self._batches_in_epoch(epoch)
                self.arguments.update(
                    cur_epoch_num=epoch + 1, batch_num=max(1, in_epoch // self.config.accumulation)
                )
            self._fire("on_train_epoch_begin")
        if self._active:
            self.arguments.update(
                cur_step_num=number,
                train_dataset_element=_joined(batches),
                sample_ids=[record_id for batch in batches for record_id in batch.record_ids],
            )
        self._fire("on_train_step_begin")

    def step_end(self, result: StepResult) -> None:
        """After a step."""
        if self._active:
            outputs = (result.loss, result.overflow, self.step.scale.value)
            kinds = (ms.float32, ms.bool_, ms.float32)
            self.arguments.update(
                net_outputs=tuple(Tensor(value, kind) for value, kind in zip(outputs, kinds, strict=True)),
                grad_norm=result.grad_norm,
                learning_rate=result.learning_rate,
            )
        self._fire("on_train_step_end")

    def evaluated(self, mean_loss: float | None) -> None:
        """After a validation: the mean loss over all its tokens, where Model.fit puts it, until the epoch ends."""
        self.arguments.update(eval_results={"eval_loss": mean_loss}, metrics={"loss": mean_loss})

    def saved(self, number: int, folder: Path) -> None:
        """After a checkpoint was written."""
        self.arguments.update(last_save_ckpt_step=number, latest_ckpt_file=str(folder))

    def epoch_end(self) -> None:
        """After the last step of an epoch, or of the run."""
        if self._epoch is not None:
            self._fire("on_train_epoch_end")
            for key in ("eval_results", "metrics"):
                self.arguments.pop(key, None)
        self._epoch = None

    def train_end(self) -> None:
        """After everything."""
        self._fire("on_train_end")

    def _fire(self, event: str) -> None:
        try:
            getattr(self._manager, event)(self._context)
        except EvalkitError:
            raise
        except Exception as error:  # a user's callback may raise anything
            raise InputError(f"a callback failed in {event}: {type(error).__name__}: {error}") from error

    def _batches_in_epoch(self, epoch: int) -> int:
        count = 0
        for place, _ in self.data.batches(self.config, Cursor(epoch)):
            if place.epoch != epoch:
                break
            count += 1
        return count


def _joined(batches: Sequence[Batch]) -> tuple[Tensor, ...]:
    """The fields of all batches of a step, one below the other."""
    parts = [batch_tensors(batch) for batch in batches]
    return parts[0] if len(parts) == 1 else tuple(ms.ops.concat(field) for field in zip(*parts, strict=True))
