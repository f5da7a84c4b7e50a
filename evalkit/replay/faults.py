"""A call to the sandbox that failed, with everything that the server says about it.

Besides code and message a server of ours sends google.rpc.Status details (trailing metadata `grpc-status-details-bin`):
ErrorInfo for programs, RetryInfo where trying again may work, BadRequest with the fields that are wrong, RequestInfo.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from evalkit.errors import IncompleteError

ResultT = TypeVar("ResultT")

_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True)
class FieldViolation:
    """A field of the request that the server doesn't take, and why."""

    field: str
    problem: str


@dataclass(frozen=True)
class FaultDetails:
    """Typed details of an error; empty where the server sends none.

    Attributes:
        reason, domain: what went wrong, for programs: a constant such as SESSION_BUSY, and who defines it.
        retry_after_s: when sending the same again may work; None if the server doesn't say so.
        violations: fields that are wrong.
        request_id: names the call in the server's log.
    """

    reason: str = ""
    domain: str = ""
    retry_after_s: float | None = None
    violations: tuple[FieldViolation, ...] = ()
    request_id: str = ""


class SandboxError(IncompleteError):
    """A call to the sandbox failed.

    Attributes:
        code: name of the gRPC status code.
        message: what the server says.
        details: the same for programs.
    """

    def __init__(self, code: str, message: str, details: FaultDetails | None = None) -> None:
        super().__init__(f"sandbox: {code}: {message}")
        self.code = code
        self.message = message
        self.details = details or FaultDetails()


def called(call: Callable[[], ResultT]) -> ResultT:
    """Make a call.

    Raises:
        SandboxError: in place of the error that gRPC raises.
    """
    try:
        return call()
    except grpc.RpcError as error:
        raise fault_of(error) from None


def fault_of(error: grpc.RpcError) -> SandboxError:
    """The error of a call as ours."""
    # Every RpcError of a call is also a grpc.Call; the stubs' base class doesn't say so.
    if not isinstance(error, grpc.Call):
        return SandboxError("UNKNOWN", str(error))
    code = error.code()
    trailing = error.trailing_metadata() or ()
    packed = next((value for key, value in trailing if key == _DETAILS_KEY and isinstance(value, bytes)), b"")
    return SandboxError(
        str(code.name), str(error.details() or "no details"), _details(packed, int(code.value[0]))
    )


def _details(packed: bytes, code: int) -> FaultDetails:
    if not packed:
        return FaultDetails()
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    found: dict[str, Any] = {}
    try:
        status = status_pb2.Status.FromString(packed)
        # Details of another status than the call's own would mislead; whoever sent them is broken.
        if status.code != code:
            return FaultDetails()
        for part in status.details:
            info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            bad, request = error_details_pb2.BadRequest(), error_details_pb2.RequestInfo()
            if part.Unpack(info):
                found |= {"reason": info.reason, "domain": info.domain}
            elif part.Unpack(retry):
                found["retry_after_s"] = max(0.0, retry.retry_delay.ToMilliseconds() / 1000)
            elif part.Unpack(bad):
                found["violations"] = tuple(
                    FieldViolation(item.field, item.description) for item in bad.field_violations
                )
            elif part.Unpack(request):
                found["request_id"] = request.request_id
    except DecodeError:
        # The status stands by itself; damaged details say nothing more.
        return FaultDetails()
    return FaultDetails(**found)
