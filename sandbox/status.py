"""Domain errors become gRPC status codes here, and nowhere else.

Beside code and message a status carries google.rpc details: ErrorInfo (a constant reason for programs), RetryInfo
(when to try again), BadRequest (which field), RequestInfo (the id to look for in the server's log).
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details
from google.rpc import status_pb2
from grpc_status import rpc_status

from sandbox.calls import REQUEST_ID_KEY, Context, current_call
from sandbox.errors import (
    CapacityError,
    DeadlinePassedError,
    EngineUnavailableError,
    ForbiddenError,
    InvalidRequestError,
    SandboxError,
    SessionBusyError,
    SessionEndedError,
    SessionExistsError,
    UnauthenticatedError,
    UnknownSessionError,
)

log = logging.getLogger(__name__)

ERROR_DOMAIN = "evalkit.sandbox.v1"

STATUS_OF: dict[type[SandboxError], grpc.StatusCode] = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    ForbiddenError: grpc.StatusCode.PERMISSION_DENIED,
    UnknownSessionError: grpc.StatusCode.NOT_FOUND,
    SessionExistsError: grpc.StatusCode.ALREADY_EXISTS,
    SessionBusyError: grpc.StatusCode.ABORTED,
    SessionEndedError: grpc.StatusCode.FAILED_PRECONDITION,
    CapacityError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlinePassedError: grpc.StatusCode.DEADLINE_EXCEEDED,
    EngineUnavailableError: grpc.StatusCode.UNAVAILABLE,
}


@asynccontextmanager
async def errors_as_status(context: Context) -> AsyncIterator[None]:
    """Run a handler's body; a domain error ends the call with its status, message and details."""
    try:
        yield
    except SandboxError as error:
        call = current_call()
        if call is not None:
            call.reason = error.reason
        await _abort(context, _code_of(error), str(error), _details_of(error))
    except grpc.aio.BaseError:
        raise  # the call has its status already, or nobody is there to get one
    except Exception:
        # A fault of ours: the log gets the traceback, the caller gets an end of the call but none of our insides.
        log.exception("a call failed")
        await _abort(
            context, grpc.StatusCode.INTERNAL, "a fault of the server; its log says more", [_info("FAULT")]
        )


async def _abort(context: Context, code: grpc.StatusCode, message: str, parts: list[Message]) -> None:
    call = current_call()
    trailing: tuple[tuple[str, str | bytes], ...] = ()
    if call is not None:
        parts = [*parts, details.RequestInfo(request_id=call.request_id)]
        trailing = ((REQUEST_ID_KEY, call.request_id),)
    status = status_pb2.Status(code=code.value[0], message=message)
    for part in parts:
        status.details.add().Pack(part)
    rich = rpc_status.to_status(status)
    await context.abort(code, message, (*trailing, *(rich.trailing_metadata or ())))


def _code_of(error: SandboxError) -> grpc.StatusCode:
    return next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)


def _details_of(error: SandboxError) -> list[Message]:
    parts = [_info(error.reason)]
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromMilliseconds(max(1, round(error.retry_after_s * 1000)))
        parts.append(details.RetryInfo(retry_delay=delay))
    if isinstance(error, InvalidRequestError):
        violation = details.BadRequest.FieldViolation(field=error.field, description=error.problem)
        parts.append(details.BadRequest(field_violations=[violation]))
    return parts


def _info(reason: str) -> Message:
    info: Message = details.ErrorInfo(reason=reason, domain=ERROR_DOMAIN)
    return info
