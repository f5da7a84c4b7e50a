"""Interrupts that leave a run folder behind which `evalkit resume` can finish."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from evalkit.errors import IncompleteError, InputError
from evalkit.runs.folder import RunFolder


@contextmanager
def terminable() -> Iterator[None]:
    """Within the block SIGTERM is what Ctrl-C is: a KeyboardInterrupt, so that everything is left in order."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may set handlers; elsewhere the host program decides about signals.
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def resumable(folder: RunFolder) -> Iterator[None]:
    """Work on a run folder, by one process at a time; whatever stops it half-way says how to go on.

    Raises:
        InputError: another process works on the folder.
        IncompleteError: the block was interrupted, or raised one itself.
    """
    how = f"finish it with `evalkit resume {folder.path}`"
    try:
        with _alone(folder):
            yield
    except KeyboardInterrupt:
        raise IncompleteError(f"interrupted; what is done is kept, {how}") from None
    except IncompleteError as error:
        raise IncompleteError(f"{error}; {how}") from None


@contextmanager
def _alone(folder: RunFolder) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:
        # Windows has no flock; there nothing keeps two processes apart.
        yield
        return
    # The lock lives as long as the open file: a killed process leaves none behind.
    with folder.plan.open("rb") as plan:
        try:
            fcntl.flock(plan, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"{folder.path}: another process works on this run; wait for it or end it first"
            ) from None
        yield
