"""Stands for `python -m sandbox serve` in tests of the process around it; behaves as --mode says."""

import json
import signal
import sys
import time
from types import FrameType


def main() -> None:
    """Behave as the mode (last argument) says."""
    mode = sys.argv[-1]
    if mode == "refuse":
        print("bundle: no such folder; make one", file=sys.stderr)
        sys.exit(2)
    if mode == "crash":
        print("Traceback ...\nValueError: boom", file=sys.stderr)
        sys.exit(1)
    if mode == "silent":
        time.sleep(60)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, _ignore)
    print("loading ...", flush=True)
    print(json.dumps({"address": "127.0.0.1:9", "model_digest": "d", "argv": sys.argv[1:]}), flush=True)
    while True:
        time.sleep(0.05)


def _ignore(number: int, frame: FrameType | None) -> None:
    return None


if __name__ == "__main__":
    main()
