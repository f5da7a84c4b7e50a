"""The server's log on stderr: one event a line, as text or JSON, each with the id of the call it belongs to.

Nothing that a user said gets into it by accident: of an exception the log shows type and place, never the message
(a message may quote the text it stumbled over). Conversations are logged only with --log-text.
"""

import asyncio
import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import orjson

from sandbox.calls import current_call

log = logging.getLogger(__name__)

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _SafeFormatter(logging.Formatter):
    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802
        """Type and places of an exception and of what caused it, without their messages."""
        lines: list[str] = []
        error = ei[1]
        while error is not None:
            lines += [*traceback.format_tb(error.__traceback__), f"{type(error).__name__}\n"]
            error = error.__cause__
        return "".join(lines).rstrip()


class TextFormatter(_SafeFormatter):
    """Time, level, logger, message, then name=value pairs."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line without a traceback."""
        pairs = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        return super().formatMessage(record) + pairs


class JsonFormatter(_SafeFormatter):
    """One JSON object a line: time (UTC), level, logger, message, request_id, the event's own fields, error."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            entry["error"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def configure_logging(form: str) -> None:
    """Send every logger's lines to stderr in this format, "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def log_loop_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A handler for exceptions that nobody awaited: asyncio's own quotes them, and so perhaps what a user said."""
    error = context.get("exception")
    log.error("in the background: %s", context["message"], exc_info=error if error is not None else False)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = {}
    if (call := current_call()) is not None:
        fields["request_id"] = call.request_id
    own = getattr(record, "fields", None)
    return {**fields, **own} if isinstance(own, dict) else fields


def _shown(value: object) -> str:
    # Quoted where a line could be misread or broken by it.
    text = str(value)
    return text if text and text.isprintable() and " " not in text and "=" not in text else repr(text)
