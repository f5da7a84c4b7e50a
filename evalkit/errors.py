"""Errors that a user meets, each with the exit code of the command-line contract.

Messages are one line: what is wrong, where (file:line or field path), what to do.
"""

from collections.abc import Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAIL = 1
    INPUT = 2
    INCONCLUSIVE = 3
    INCOMPLETE = 4
    FAULT = 70


class EvalkitError(Exception):
    """Base of the errors that a command reports as one line instead of a traceback."""

    exit_code: ExitCode = ExitCode.FAULT


class InputError(EvalkitError):
    """Wrong usage, configuration or data: the caller can mend it."""

    exit_code = ExitCode.INPUT


class IncompleteError(EvalkitError):
    """The work stopped half-way (dead engine, interrupt); what is done is kept."""

    exit_code = ExitCode.INCOMPLETE


def as_written(value: object) -> str:
    """A value of a file as messages show it, in the words of YAML and JSON: null, true, a number, a quoted text, its kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return f"{value!r:.60}"
    return "a mapping" if isinstance(value, Mapping) else "a list"
