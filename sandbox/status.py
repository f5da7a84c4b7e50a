"""Domain errors become gRPC status codes here, and nowhere else."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from sandbox.errors import (
    CapacityError,
    EngineUnavailableError,
    InvalidRequestError,
    SandboxError,
    SessionBusyError,
    SessionEndedError,
    SessionExistsError,
    UnknownSessionError,
)

log = logging.getLogger(__name__)

STATUS_OF: dict[type[SandboxError], grpc.StatusCode] = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownSessionError: grpc.StatusCode.NOT_FOUND,
    SessionExistsError: grpc.StatusCode.ALREADY_EXISTS,
    SessionBusyError: grpc.StatusCode.ABORTED,
    SessionEndedError: grpc.StatusCode.FAILED_PRECONDITION,
    CapacityError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    EngineUnavailableError: grpc.StatusCode.UNAVAILABLE,
}


@asynccontextmanager
async def errors_as_status(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Run a handler's body; a domain error ends the call with its status and message."""
    try:
        yield
    except SandboxError as error:
        await context.abort(STATUS_OF[type(error)], str(error))
    except Exception:
        # A fault of ours: the log gets the traceback, the caller gets an end of the call but none of our insides.
        log.exception("a call failed")
        await context.abort(grpc.StatusCode.INTERNAL, "a fault of the server; its log says more")
