"""With which status a call is counted that nobody gave one."""

from typing import Any

import grpc
import pytest

from sandbox.interceptor import _ended_with


class Ended:
    """The context of a call that ended."""

    def __init__(self, remaining_s: float | None, code: object = None) -> None:
        self._remaining_s = remaining_s
        self._code = code

    def code(self) -> object:
        return self._code

    def time_remaining(self) -> float | None:
        return self._remaining_s


@pytest.mark.parametrize(
    ("after_s", "remaining_s", "expected"),
    [
        (1.0, None, grpc.StatusCode.CANCELLED),
        (1.0, 29.0, grpc.StatusCode.CANCELLED),
        (28.0, 2.0, grpc.StatusCode.CANCELLED),
        (0.05, 0.02, grpc.StatusCode.CANCELLED),
        (1.0, 0.0, grpc.StatusCode.DEADLINE_EXCEEDED),
        # The caller's own clock says that its deadline has passed; ours doesn't yet.
        (0.998, 0.004, grpc.StatusCode.DEADLINE_EXCEEDED),
        (119.2, 0.8, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_a_call_that_ends_at_its_deadline_is_no_cancel(
    after_s: float, remaining_s: float | None, expected: grpc.StatusCode
) -> None:
    context: Any = Ended(remaining_s)
    assert _ended_with(context, after_s) is expected


def test_a_status_that_was_set_stands() -> None:
    context: Any = Ended(0.0, grpc.StatusCode.UNAVAILABLE.value[0])
    assert _ended_with(context, 1.0) is grpc.StatusCode.UNAVAILABLE
