"""Domain errors become gRPC status codes here, and nowhere else."""

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
