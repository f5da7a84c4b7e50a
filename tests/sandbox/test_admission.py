"""Which turns are taken: bounds, deadlines, and what the server learns about the time that turns take."""

from contextlib import ExitStack

import pytest

from sandbox.admission import Admission
from sandbox.engine.requests import EngineLoad
from sandbox.errors import CapacityError, DeadlinePassedError


class Bench:
    """Admission over an engine of which only the load matters, with a clock set by hand."""

    def __init__(self, slots: int | None, max_waiting: int = 4) -> None:
        self.now = 0.0
        self.waiting = 0
        self.slots = slots
        self.held = ExitStack()
        self.admission = Admission(self, max_waiting, lambda: self.now)  # type: ignore[arg-type]

    def load(self) -> EngineLoad:
        return EngineLoad(0, self.waiting, self.slots, None, None, {})

    def hold(self, count: int) -> None:
        """Take turns that never end."""
        for _ in range(count):
            self.held.enter_context(self.admission.admit(None))

    def teach(self, busy_s: float, queue_s: float = 0.0) -> None:
        """Run one turn that occupies its place for so long after waiting; a fourth of it is prefill."""
        with self.admission.admit(None) as place:
            self.now += queue_s + busy_s / 4
            place.first_token()
            self.now += busy_s * 3 / 4
            place.ended(int(busy_s / 4 * 1e9))


def test_turns_within_the_places_never_wait() -> None:
    bench = Bench(slots=2)
    bench.teach(5.0)
    bench.hold(1)
    assert bench.admission.expected_wait_s() == 0.0
    with bench.admission.admit(0.001):
        assert bench.admission.in_flight == 2
    assert bench.admission.in_flight == 1


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    bench = Bench(slots=2, max_waiting=3)
    bench.teach(4.0)
    bench.hold(5)
    with pytest.raises(CapacityError) as refused, bench.admission.admit(None):
        pass
    assert refused.value.reason == "QUEUE_FULL"
    # Two places, three waiting: the fourth would begin after four of them ended, two every 4 s.
    assert refused.value.retry_after_s == pytest.approx(8.0)
    assert bench.admission.in_flight == 5


def test_a_deadline_shorter_than_the_wait_is_refused_before_any_work() -> None:
    bench = Bench(slots=2)
    bench.teach(4.0)
    bench.hold(3)
    assert bench.admission.expected_wait_s() == pytest.approx(4.0)
    with pytest.raises(CapacityError) as refused, bench.admission.admit(1.0):
        pass
    assert refused.value.reason == "DEADLINE_TOO_SHORT"
    assert refused.value.retry_after_s == pytest.approx(3.0)
    with bench.admission.admit(4.5):
        pass


def test_without_experience_no_deadline_is_called_too_short() -> None:
    bench = Bench(slots=1)
    bench.hold(2)
    assert bench.admission.expected_wait_s() is None
    with bench.admission.admit(0.001):
        pass


def test_the_time_in_the_queue_isnt_taken_for_work() -> None:
    bench = Bench(slots=1)
    bench.teach(busy_s=2.0, queue_s=50.0)
    bench.hold(1)
    assert bench.admission.expected_wait_s() == pytest.approx(2.0)


def test_a_cancelled_turn_teaches_nothing() -> None:
    bench = Bench(slots=1)
    with pytest.raises(ZeroDivisionError), bench.admission.admit(None):
        bench.now += 100
        raise ZeroDivisionError
    bench.hold(1)
    assert bench.admission.expected_wait_s() is None


def test_turns_that_wait_for_cache_memory_are_counted_too() -> None:
    bench = Bench(slots=8)
    bench.teach(4.0)
    bench.hold(4)
    bench.waiting = 3
    assert bench.admission.waiting() == 3
    assert bench.admission.expected_wait_s() == pytest.approx(2.0)


def test_an_engine_that_doesnt_say_how_much_it_runs_is_bounded_all_the_same() -> None:
    bench = Bench(slots=None, max_waiting=3)
    bench.teach(4.0)
    bench.hold(2)
    with bench.admission.admit(0.001):
        pass
    bench.hold(1)
    with pytest.raises(CapacityError), bench.admission.admit(None):
        pass


def test_a_deadline_that_has_passed_is_no_lack_of_capacity() -> None:
    with pytest.raises(DeadlinePassedError), Bench(slots=1).admission.admit(0.0):
        pass
