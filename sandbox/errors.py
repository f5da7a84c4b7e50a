"""What can go wrong with a request. `status.py` maps each of these to one gRPC status code and its details."""

from typing import ClassVar


class SandboxError(Exception):
    """Base of the errors that a caller meets as a status.

    Attributes:
        reason: what went wrong, for programs: a constant of the wire (google.rpc.ErrorInfo.reason).
        retry_after_s: when sending the same again may work; None where it won't, or where nobody knows.
    """

    default_reason: ClassVar[str] = "SANDBOX_ERROR"

    def __init__(self, message: str, *, reason: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason or self.default_reason
        self.retry_after_s = retry_after_s


class InvalidRequestError(SandboxError):
    """A field is empty, malformed or over its limit.

    Attributes:
        problem: what is wrong and what to do.
        field: its name as in the .proto, with a dot before a nested one; "" where no single field is to blame.
    """

    default_reason = "INVALID_FIELD"

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.problem = problem
        self.field = field


class UnauthenticatedError(SandboxError):
    """No bearer token, or one that the server doesn't know."""

    default_reason = "TOKEN_INVALID"


class ForbiddenError(SandboxError):
    """The caller is known but may not do this."""

    default_reason = "TENANT_MISMATCH"


class UnknownSessionError(SandboxError):
    """No session of this id (and this tenant): never opened, timed out, or evicted."""

    default_reason = "SESSION_UNKNOWN"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session_id: no session {session_id!r}; it was never opened, idled out, or made room for another"
        )


class SessionExistsError(SandboxError):
    """A session of this id exists already."""

    default_reason = "SESSION_EXISTS"


class SessionBusyError(SandboxError):
    """Another turn of the session is running."""

    default_reason = "SESSION_BUSY"


class SessionEndedError(SandboxError):
    """The session takes no more turns: handed over, closed, or at its maximum of turns or of text."""

    default_reason = "SESSION_ENDED"


class CapacityError(SandboxError):
    """Sessions, cache memory or the queue are full; trying later may work."""

    default_reason = "CAPACITY"

    def __init__(self, message: str, retry_after_s: float | None = 1.0, *, reason: str = "") -> None:
        super().__init__(message, reason=reason, retry_after_s=retry_after_s)


class DeadlinePassedError(SandboxError):
    """The caller's deadline passed before the work began."""

    default_reason = "DEADLINE_PASSED"


class EngineUnavailableError(SandboxError):
    """The engine is loading, restarting or shutting down; the turn left no trace and can be sent again."""

    default_reason = "ENGINE_UNAVAILABLE"
