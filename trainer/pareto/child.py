"""One run of a search, in a process of its own: a training as `trainer train --resume` does it.

Reads {"config": the whole configuration, "folder": where its paths start, "out": the run folder} from stdin. It ends with
its parent, also when that one is killed, so that a resumed search finds the run folder free.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

from evalkit.console import say
from evalkit.errors import EvalkitError

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """The exit code of `trainer train`."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before it could be asked
        return 4
    told = json.load(sys.stdin)
    from evalkit.backends.runtime import load_mindspore

    load_mindspore()
    from trainer.config import TrainConfig
    from trainer.loop import train

    try:
        train(
            TrainConfig.model_validate(told["config"]), Path(told["folder"]), Path(told["out"]), resume=True
        )
    except EvalkitError as error:
        say(f"error: {error}")
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
