"""What can go wrong with a request. `status.py` maps each of these to one gRPC status code."""


class SandboxError(Exception):
    """Base of the errors that a caller meets as a status."""


class InvalidRequestError(SandboxError):
    """A field is empty, malformed or over its limit."""


class UnknownSessionError(SandboxError):
    """No session of this id: never opened, timed out, or evicted."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session_id: no session {session_id!r}; it was never opened, idled out, or made room for another"
        )


class SessionExistsError(SandboxError):
    """A session of this id exists already."""


class SessionBusyError(SandboxError):
    """Another turn of the session is running."""


class SessionEndedError(SandboxError):
    """The session takes no more turns: handed over, closed, or at its maximum of turns."""


class CapacityError(SandboxError):
    """Sessions, cache memory or the queue are full; trying later may work.

    Attributes:
        retry_after_s: when, as far as it is known.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailableError(SandboxError):
    """The engine is loading, restarting or shutting down; the turn left no trace and can be sent again."""
