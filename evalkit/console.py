"""What the three command lines share: exit codes, one-line errors, progress on stderr."""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import click

from evalkit.errors import EvalkitError, ExitCode

if TYPE_CHECKING:
    from rich.progress import TaskID


def run(group: click.Command, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command group and leave the process with the exit code of the contract.

    A command returns None (0) or an exit code. Errors of the user's making are one line on stderr; a traceback
    appears only for a fault of ours, exit code 70.
    """
    _open_closed_streams()
    stdout = sys.stdout
    try:
        result = group.main(args=None if argv is None else list(argv), standalone_mode=False)
        code = int(result) if isinstance(result, int) else int(ExitCode.OK)
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _silence_stdout()  # the command is done: its code stands, whether or not anybody read the rest
    except SystemExit:
        # Of a reader of our output (head, less) that goes away in the middle click makes 1, our code for FAIL, and puts
        # something else in stdout's place. It isn't 0 either, which would say PASS of a verdict that nobody got to see.
        if sys.stdout is stdout:
            raise
        _silence_stdout()
        code = int(ExitCode.INCOMPLETE)
    except EvalkitError as error:
        code = _report(str(error), int(error.exit_code))
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        # A group without a command: its help, as a page and not on one line.
        sys.stderr.write(f"{error.format_message()}\n")
        code = int(ExitCode.INPUT)
    except click.ClickException as error:
        code = _report(error.format_message(), int(ExitCode.INPUT))
    except (click.Abort, KeyboardInterrupt):
        code = _report("interrupted; what was finished is kept", int(ExitCode.INCOMPLETE))
    except BrokenPipeError:
        # A command that has no outcome of its own (a conversation) ends so when its reader goes away: not an error.
        _silence_stdout()
        code = int(ExitCode.OK)
    except OSError as error:
        # The machine said no: a path that can't be made, no permission, no space.
        where = f"{error.filename}: " if error.filename else ""
        code = _report(
            f"{where}{error.strerror or error}; check the path, its permissions and the disk",
            int(ExitCode.INPUT),
        )
    except Exception:
        # The last line of defence: whatever reaches it is our fault and is shown in full, so that it can be reported.
        traceback.print_exc()
        code = _report(
            "this is a fault of evalkit; please report it with the lines above", int(ExitCode.FAULT)
        )
    sys.exit(code)


def _open_closed_streams() -> None:
    """A stream that the caller has closed (`>&-`) leads nowhere.

    Otherwise the next file that is opened has its number, and gets what a library or a child process prints.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _silence_stdout() -> None:
    """What is left in the buffer goes nowhere; Python would complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _report(message: str, code: int) -> int:
    line = " ".join(message.split())
    sys.stderr.write(f"error: {line}\n")
    return code


class Progress(Protocol):
    """Progress of long work: tasks with a known total, advanced step by step."""

    def start(self, name: str, total: int) -> int:
        """Begin a task and return its handle."""
        ...

    def advance(self, task: int, steps: int = 1) -> None:
        """Report `steps` more units done."""
        ...


class SilentProgress:
    """Shows nothing."""

    def start(self, name: str, total: int) -> int:
        """Begin a task; there is only one handle."""
        return 0

    def advance(self, task: int, steps: int = 1) -> None:
        """Nothing to show."""


class _BarProgress:
    def __init__(self, bars: Any) -> None:
        self._bars = bars

    def start(self, name: str, total: int) -> int:
        task: TaskID = self._bars.add_task(name, total=total)
        return int(task)

    def advance(self, task: int, steps: int = 1) -> None:
        self._bars.advance(task, steps)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Progress bars on stderr; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield SilentProgress()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        yield _BarProgress(bars)


def say(message: str) -> None:
    """A line for the person at the terminal, on stderr."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
