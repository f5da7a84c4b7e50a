"""Waiting times: growing, jittered by a seed, never shorter than what the server asks for, and not for ever."""

import pytest

from evalkit.replay.faults import FaultDetails, SandboxError
from evalkit.replay.retries import Retries


def fault(code: str = "UNAVAILABLE", retry_after_s: float | None = None) -> SandboxError:
    return SandboxError(code, "on purpose", FaultDetails(retry_after_s=retry_after_s))


def waits(seed: int) -> list[float | None]:
    retries = Retries(seed)
    return [retries.wait_s(fault(), number) for number in range(4)]


def test_waits_grow_are_jittered_and_end() -> None:
    first, second, third, last = waits(1)
    assert first is not None and 0.1 <= first <= 0.2
    assert second is not None and 0.4 <= second <= 0.8
    assert third is not None and 1.6 <= third <= 3.2
    assert last is None


def test_a_seed_fixes_the_jitter_and_clients_differ() -> None:
    assert waits(1) == waits(1) != waits(2)
    assert waits(1) != [Retries().wait_s(fault(), number) for number in range(4)]


def test_the_servers_time_is_a_lower_bound_and_a_long_one_is_left_to_a_person() -> None:
    assert Retries(1).wait_s(fault("RESOURCE_EXHAUSTED", 5.0), 0) == 5.0
    assert Retries(1).wait_s(fault("UNAVAILABLE", 31.0), 0) is None


@pytest.mark.parametrize(
    "code", ["RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "INTERNAL", "NOT_FOUND", "CANCELLED"]
)
def test_what_is_not_repeated(code: str) -> None:
    assert Retries(1).wait_s(fault(code), 0) is None


def test_other_errors_pass_through() -> None:
    def broken(number: int) -> None:
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        Retries(1).run(broken)
