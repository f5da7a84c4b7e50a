"""The callback that does the harm inside a worker."""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindspore.train import Callback, RunContext

from evalkit.bundle import WEIGHTS
from trainer.checkpoint import RunFiles, saved_steps, step_folder
from trainer.stress.worker import fill_disk, strike


class Injector(Callback):  # type: ignore[misc]  # MindSpore has no types
    """Strikes this worker by the attempt's faults, and notes when it arrives at each step."""

    def __init__(
        self, rank: int, faults: Sequence[dict[str, Any]], signs: Path, run: Path, attempt: int
    ) -> None:
        super().__init__()
        self._rank, self._signs, self._run = rank, signs, run
        self._faults = [fault for fault in faults if rank in fault["ranks"]]
        self._arrivals = (signs / f"arrivals-{attempt}-{rank}.jsonl").open("a", buffering=1)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Strike, and arrive."""
        step = int(run_context.original_args()["cur_step_num"])
        for fault in self._faults:
            if fault["kind"] == "slow_rank" and 0 <= step - fault["step"] < fault["slow_steps"]:
                if step == fault["step"]:
                    self._strike(fault)
                time.sleep(fault["delay_s"])
            elif step == fault["step"]:
                getattr(self, f"_{fault['kind']}", lambda _: None)(fault)
        with suppress(OSError):  # the full disk is the training's to report
            self._arrivals.write(json.dumps({"step": step, "at_s": time.monotonic()}) + "\n")

    def _strike(self, fault: dict[str, Any], **facts: Any) -> None:
        strike(self._signs / f"struck-{fault['number']}-{self._rank}", **facts)

    def _kill(self, fault: dict[str, Any]) -> None:
        self._strike(fault)
        os.kill(os.getpid(), signal.SIGKILL)

    def _hang(self, fault: dict[str, Any]) -> None:
        """Come to this step and never leave it, alive: the others wait for this worker's gradients."""
        self._strike(fault)
        while True:  # the thread that watches the supervisor goes on
            time.sleep(3600)

    def _corrupt_checkpoint(self, fault: dict[str, Any]) -> None:
        """Turn one byte of the newest checkpoint over, then die: the damage is met by whoever goes on."""
        newest = saved_steps(self._run)[-1]
        with (step_folder(self._run, newest) / WEIGHTS).open("r+b") as stream:
            stream.seek(-1, os.SEEK_END)
            byte = stream.read(1)[0]
            stream.seek(-1, os.SEEK_END)
            stream.write(bytes([byte ^ 0xFF]))
        self._strike(fault, damaged_step=newest)
        os.kill(os.getpid(), signal.SIGKILL)

    def _full_disk(self, fault: dict[str, Any]) -> None:
        """Half a weight file's room is left: the next checkpoint doesn't fit, small files still do."""
        newest = step_folder(self._run, saved_steps(self._run)[-1])
        self._strike(fault)
        fill_disk((newest / WEIGHTS).stat().st_size // 2)

    def _delay_checkpoint(self, fault: dict[str, Any]) -> None:
        """The checkpoint of this step takes longer, as on a slow shared disk."""
        write: Callable[..., None] = RunFiles.write

        def delayed(*arguments: Any, **options: Any) -> None:
            RunFiles.write = write  # type: ignore[method-assign]
            self._strike(fault)
            time.sleep(fault["delay_s"])
            write(*arguments, **options)

        RunFiles.write = delayed  # type: ignore[method-assign]
