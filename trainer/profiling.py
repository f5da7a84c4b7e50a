"""Recording MindSpore's profiler for some steps of a training run."""

from pathlib import Path
from typing import Any

from evalkit.console import say
from trainer.configuration.running import ProfileConfig


class StepProfiler:
    """Records the steps that `plan` chooses into a folder, by `mindspore.profiler`."""

    def __init__(self, folder: Path, plan: ProfileConfig) -> None:
        self._folder, self._plan = folder, plan
        self._steps = 0
        self._profiler: Any = None

    def before(self) -> None:
        """Called before each step."""
        self._steps += 1
        if self._steps == self._plan.first_step:
            from mindspore import profiler

            self._profiler = profiler.profile(
                activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
                on_trace_ready=profiler.tensorboard_trace_handler(str(self._folder)),
                start_profile=False,
            )
            self._profiler.start()

    def after(self) -> None:
        """Called after each step."""
        if self._steps == self._plan.first_step + self._plan.steps - 1:
            self._stop()

    def close(self) -> None:
        """Called when the run ends, perhaps before the chosen steps do."""
        self._stop()
        if self._steps < self._plan.first_step:
            say(
                f"profile: nothing was recorded, {self._steps} steps ran and profile.first_step is {self._plan.first_step}"
            )

    def _stop(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
            say(f"profile: {self._folder}")
