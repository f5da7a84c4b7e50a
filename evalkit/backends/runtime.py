"""The one door to MindSpore: everything in evalkit that touches it holds this module's lock.

Two threads inside MindSpore at once crash or hang the process, so there is one lock for the whole process. A
process
must not fork after a graph has run: use spawn.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.RLock()


@contextmanager
def mindspore_session() -> Iterator[Any]:
    """Hold the lock and yield the `mindspore` module, imported when first needed.

    Keep the block short: nobody else in this process can score or generate meanwhile.
    """
    with _lock:
        # MindSpore logs warnings of its own to stderr from C++; the level is read at import.
        os.environ.setdefault("GLOG_v", "3")
        import mindspore

        yield mindspore
