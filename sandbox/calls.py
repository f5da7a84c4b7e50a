"""The call that is being served: its id, who calls, what its line of log says."""

import time
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

REQUEST_ID_KEY = "x-request-id"

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass
class Call:
    """One call while it runs.

    Attributes:
        method: full name on the wire, "/package.Service/Method".
        request_id: the caller's, or made here.
        tenant: whom the bearer token belongs to; "" on a server without tokens.
        reason: of the error that ended it, "" for none.
        fields: what else its line of log says.
    """

    method: str
    request_id: str
    started_ns: int = field(default_factory=time.perf_counter_ns)
    tenant: str = ""
    reason: str = ""
    fields: dict[str, object] = field(default_factory=dict)


_current: ContextVar[Call | None] = ContextVar("call", default=None)


def current_call() -> Call | None:
    """The call that the running task serves."""
    return _current.get()


def begin_call(call: Call) -> Token[Call | None]:
    """From now on the running task serves this call; the token ends that."""
    return _current.set(call)


def end_call(token: Token[Call | None]) -> None:
    """The running task serves what it served before."""
    _current.reset(token)
