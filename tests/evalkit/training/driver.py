"""A training that only tells of its steps, for what a callback does between them."""

from mindspore import nn
from mindspore.train.callback._callback import InternalCallbackParam

from evalkit.training.callback import EvalCallback
from tests.evalkit.training.tutorial import TutorialLM


class Nowhere:
    """A sink that keeps nothing: `EvalCallback.records` is what the test looks at."""

    def write(self, record) -> None:
        pass

    def close(self) -> None:
        pass


class Run:
    """Stands for `RunContext`; `stopped` is the step after which the end was asked for."""

    def __init__(self, **fields) -> None:
        self.arguments = InternalCallbackParam()
        self.arguments.update(cur_step_num=0, batch_num=4, epoch_num=2, net_outputs=None, **fields)
        self.stopped = None

    def original_args(self):
        return self.arguments

    def request_stop(self) -> None:
        self.stopped = self.arguments["cur_step_num"]


def network(check) -> TutorialLM:
    return TutorialLM(check.tokenizer.vocab_size, nn.Dropout(p=0.1))


def drive(callback: EvalCallback, steps: int = 4, first_epoch: int = 1, **fields) -> Run:
    """Tell the callback of a training of `steps` steps; a field may be a function of the step."""
    run = Run()
    callback.on_train_begin(run)
    for step in range(1, steps + 1):
        now = {name: value(step) if callable(value) else value for name, value in fields.items()}
        run.arguments.update(cur_step_num=step, cur_epoch_num=first_epoch + (step - 1) // 4, **now)
        callback.on_train_step_end(run)
        if run.stopped is not None:
            break
    callback.on_train_end(run)
    return run
