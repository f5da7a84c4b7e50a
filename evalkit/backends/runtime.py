"""The one door to MindSpore: everything in evalkit that touches it holds this module's lock.

Two threads inside MindSpore at once crash or hang the process, so there is one lock for the whole process. A process
must not fork after a graph has run: use spawn.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PROTOBUF_VARIABLE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"

_lock = threading.RLock()


def load_mindspore() -> None:
    """Import MindSpore, so that an interrupt waits until it is whole: one in the middle of the import aborts the process.

    MindSpore asks protobuf, through the environment, for its slow implementation in Python. That is settled for this process
    when the import ends, and taken back for those that it starts: a sandbox never loads MindSpore in its server.
    """
    # MindSpore logs warnings of its own to stderr from C++; the level is read at import.
    os.environ.setdefault("GLOG_v", "3")
    if "mindspore" in sys.modules:
        return
    protobuf = os.environ.get(_PROTOBUF_VARIABLE)
    with _interrupts_wait():
        import mindspore  # noqa: F401
    if protobuf is None:
        os.environ.pop(_PROTOBUF_VARIABLE, None)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def mindspore_session() -> Iterator[Any]:
    """Hold the lock and yield the `mindspore` module, imported when first needed.

    Keep the block short: nobody else in this process can score or generate meanwhile.
    """
    with _lock:
        load_mindspore()
        import mindspore

        yield mindspore
