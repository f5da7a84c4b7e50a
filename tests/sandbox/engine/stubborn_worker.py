"""The engine process with a loop that can be made to stand still inside a round; its pipe thread goes on reading.

A turn of the tenant `pause 1.5` makes the next round last 1.5 s longer, one of `pause inf` for ever, one of
`pause until FILE` until that is there. What the round computed has been sent by then. With the environment variable below it stands still instead of loading.
"""

import os
import threading
import time
from pathlib import Path

from sandbox.engine import worker
from sandbox.engine.batcher import Batcher
from sandbox.engine.pipe import Message
from sandbox.engine.supervisor import EngineSupervisor

STOPS_AT_ONCE = "STUBBORN_WORKER_STOPS_AT_ONCE"


class StubbornSupervisor(EngineSupervisor):
    """Starts this engine."""

    worker_module = "tests.sandbox.engine.stubborn_worker"


class StubbornBatcher(Batcher):
    """See the module."""

    _pause = ""

    def handle(self, message: Message) -> None:
        """See `Batcher`."""
        if message["op"] == "generate" and message["tenant"].startswith("pause "):
            self._pause = message["tenant"].removeprefix("pause ")
        super().handle(message)

    def round(self) -> None:
        """See `Batcher`."""
        super().round()
        pause, self._pause = self._pause, ""
        if pause.startswith("until "):
            file = Path(pause.removeprefix("until "))
            while not file.exists():
                time.sleep(0.005)
        elif pause:
            threading.Event().wait(None if pause == "inf" else float(pause))


if __name__ == "__main__":
    if STOPS_AT_ONCE in os.environ:
        threading.Event().wait()
    worker.Batcher = StubbornBatcher  # type: ignore[misc]
    worker.main()
