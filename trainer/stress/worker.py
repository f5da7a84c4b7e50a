"""One worker of a job under stress, started by msrun (or alone): a training that does itself the harm it is told to.

What it tells lies in the job's `signs` folder: its process, what struck it and when, and when it arrived at each step.
Times are of the monotonic clock, which all processes of a machine share.
"""

import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from evalkit.console import say
from evalkit.errors import EvalkitError

_WATCH_S = 1.0


def main(job: Path) -> int:
    """Train as the job's folder says; the exit code of `trainer train`."""
    told = json.loads((job / "attempt.json").read_text())
    end_with(told["supervisor"])
    rank = int(os.environ.get("RANK_ID", "0"))
    signs = job / "signs"
    _write(signs / f"worker-{told['attempt']}-{rank}", {"pid": os.getpid(), "at_s": time.monotonic()})
    from trainer.config import load_config
    from trainer.loop import train
    from trainer.stress.injection import Injector

    config_path = Path(told["config"])
    run = job / "run"
    injector = Injector(rank, told["faults"], signs, run, told["attempt"])
    try:
        train(load_config(config_path), config_path.parent, run, resume=True, callbacks=[injector])
    except EvalkitError as error:
        # The place that takes the message may be the disk that is full: the sign is small enough for it.
        _write(signs / f"refusal-{told['attempt']}-{rank}", {"message": str(error), "at_s": time.monotonic()})
        say(f"error: {error}")
        return int(error.exit_code)
    return 0


def end_with(supervisor: int) -> None:
    """Kill this process soon after the supervisor is gone: killed by 9, it can't end its workers itself."""

    def watch() -> None:
        while _lives(supervisor):
            time.sleep(_WATCH_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def strike(path: Path, **facts: Any) -> None:
    """Say that a fault strikes now; the caller does the harm next."""
    _write(path, {"at_s": time.monotonic(), **facts})


def _write(path: Path, value: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}")
    part.write_text(json.dumps(value))
    part.replace(path)


def fill_disk(room: int) -> None:
    """From here on no file of this process can grow past `room` bytes, as on a disk that has no more."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


if __name__ == "__main__":
    from evalkit.backends.runtime import load_mindspore

    load_mindspore()
    sys.exit(main(Path(sys.argv[1])))
