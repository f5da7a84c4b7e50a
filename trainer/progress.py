"""Training progress on stderr: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from evalkit.console import say

_LINE_EVERY_STEPS = 50


class TrainingProgress(Protocol):
    """Told about every step."""

    def step(self, number: int, loss: float, tokens: int) -> None:
        """Step `number` ended with `loss`; `tokens` were trained on since the start."""
        ...


class _Speed:
    def __init__(self) -> None:
        self._start: tuple[float, int] | None = None

    def tokens_per_s(self, tokens: int) -> float:
        # The first step compiles the graphs and says nothing about speed, so the clock starts after it.
        now = time.monotonic()
        if self._start is None:
            self._start = (now, tokens)
            return 0.0
        return (tokens - self._start[1]) / max(now - self._start[0], 1e-9)


class _Lines:
    def __init__(self, steps: int) -> None:
        self._steps, self._speed = steps, _Speed()

    def step(self, number: int, loss: float, tokens: int) -> None:
        speed = self._speed.tokens_per_s(tokens)
        if number % _LINE_EVERY_STEPS == 0 or number in (1, self._steps):
            shown = f"  {speed:,.0f} tokens/s" if speed else ""
            say(f"step {number}/{self._steps}  loss {loss:.4f}{shown}")


class _Bar:
    def __init__(self, bars: Any, steps: int) -> None:
        self._bars, self._speed = bars, _Speed()
        self._task = bars.add_task("train", total=steps, loss=float("nan"), speed=0.0)

    def step(self, number: int, loss: float, tokens: int) -> None:
        self._bars.update(self._task, completed=number, loss=loss, speed=self._speed.tokens_per_s(tokens))


@contextmanager
def training_progress(steps: int) -> Iterator[TrainingProgress]:
    """Progress for a run of `steps` steps."""
    if not sys.stderr.isatty():
        yield _Lines(steps)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield _Bar(bars, steps)
