"""Recording MindSpore's profiler for some steps of a training run."""

from pathlib import Path
from typing import Any

from evalkit.console import say
from trainer.configuration.running import ProfileConfig


class StepProfiler:
    """Records the steps that `plan` chooses into a folder, by `mindspore.profiler`."""

    def __init__(self, folder: Path, plan: ProfileConfig) -> None:
        self._folder, self._plan = folder, plan
        self._profiler: Any = None

    def before(self, step: int) -> None:
        """Called before each step."""
        if step == self._plan.first_step:
            from mindspore import profiler

            self._profiler = profiler.profile(
                activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
                on_trace_ready=profiler.tensorboard_trace_handler(str(self._folder)),
                start_profile=False,
            )
            self._profiler.start()

    def after(self, step: int) -> None:
        """Called after each step."""
        if self._profiler is not None and step == self._plan.first_step + self._plan.steps - 1:
            self.close()

    def close(self) -> None:
        """Stop recording, also where the run ends before its steps do."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
            say(f"profile: {self._folder}")
