"""Who is to blame for a turn that gave no result: the model, the simulated user, the harness or the infrastructure.

Only the model's faults are failures; all others are missing results, which cost coverage.
"""

from evalkit.runs.records import Blame

# The server refuses what the replay sent: the scenario or this program is at fault, not the machine.
_HARNESS = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    }
)


def blame_of_fault(code: str) -> Blame:
    """Who is to blame for a call that failed with this gRPC status."""
    return "harness" if code in _HARNESS else "infrastructure"
