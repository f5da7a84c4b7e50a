"""When an evaluation is due."""

import math

import numpy as np
import pytest

from evalkit.errors import InputError
from evalkit.training.triggers import (
    AtFractions,
    EveryEpoch,
    EveryNSteps,
    OnLossScaleDrop,
    OnLossSpike,
    OnOverflow,
    StepEvent,
)


def fired(trigger, events) -> list[int]:
    return [event.step for event in events if trigger.see(event) is not None]


def scales(values) -> list[StepEvent]:
    return [StepEvent(step, 1, loss_scale=value) for step, value in enumerate(values, start=1)]


def losses(values) -> list[StepEvent]:
    return [StepEvent(step, 1, loss=value) for step, value in enumerate(values, start=1)]


def test_schedules():
    events = [StepEvent(step, (step + 3) // 4, step % 4 == 0, 12) for step in range(1, 13)]
    assert fired(EveryNSteps(5), events) == [5, 10]
    assert fired(EveryEpoch(), events) == [4, 8, 12]
    assert fired(EveryEpoch(2), events) == [8]
    assert fired(AtFractions([0.5, 0.1, 1.0]), events) == [2, 6, 12]
    assert fired(AtFractions([0.5]), [StepEvent(1, 1)]) == []


def test_a_fraction_that_is_passed_in_one_leap_fires_once():
    assert fired(
        AtFractions([0.1, 0.2]), [StepEvent(50, 1, total_steps=100), StepEvent(51, 1, total_steps=100)]
    ) == [50]


@pytest.mark.parametrize(
    "make",
    [
        lambda: EveryNSteps(0),
        lambda: EveryNSteps(2.5),
        lambda: EveryNSteps(True),
        lambda: EveryNSteps(math.nan),
        lambda: EveryNSteps("500"),
        lambda: EveryEpoch(None),
        lambda: EveryEpoch(-1),
        lambda: AtFractions([]),
        lambda: AtFractions([1.5]),
        lambda: AtFractions([math.nan]),
        lambda: AtFractions([True]),
        lambda: AtFractions(0.5),
        lambda: AtFractions(["half"]),
        lambda: OnLossScaleDrop(window=math.inf),
        lambda: OnLossScaleDrop(settled=-1),
        lambda: OnOverflow(settled=1.5),
        lambda: OnLossSpike(deviations=math.nan),
        lambda: OnLossSpike(deviations=0),
        lambda: OnLossSpike(persistence=True),
        lambda: OnLossScaleDrop(halvings=0),
        lambda: OnOverflow(consecutive=0),
        lambda: OnLossSpike(window=3),
    ],
)
def test_numbers_that_do_not_fit_are_refused(make):
    with pytest.raises(InputError, match=r"is needed|are needed"):
        make()


def test_calibration_is_exempt_and_a_collapse_fires_once():
    calibration = [2.0 ** (24 - fall) for fall in range(1, 10)]  # nine overflows from the start
    settled = [2.0**15] * 50
    assert fired(OnLossScaleDrop(), scales(calibration + settled)) == []
    collapse = [2.0**14, 2.0**13]
    assert fired(OnLossScaleDrop(), scales(calibration + settled + collapse + [2.0**13] * 20)) == [61]


def test_routine_growth_and_halving_is_healthy():
    course = []
    for _ in range(30):
        course += [2.0**15] * 10 + [2.0**16]  # grown after its window, overflow, back
    assert fired(OnLossScaleDrop(window=100), scales(course)) == []


def test_two_halvings_far_apart_are_not_a_collapse():
    course = [2.0**15] * 20 + [2.0**14] * 100 + [2.0**13] * 20
    assert fired(OnLossScaleDrop(window=50), scales(course)) == []
    assert fired(OnLossScaleDrop(window=150), scales(course)) == [121]


def test_a_scale_that_is_read_every_few_steps_settles_too():
    sparse = [event for event in scales([2.0**15] * 40 + [2.0**12] * 40) if event.step % 10 == 0]
    assert fired(OnLossScaleDrop(), sparse) == [50]


def test_a_scale_that_is_no_number_is_not_a_drop():
    assert fired(OnLossScaleDrop(), scales([8.0] * 10 + [math.nan, math.inf, 8.0])) == []


def test_overflow_after_calibration():
    pattern = [True] * 4 + [False] * 6 + [True, False, True, True]
    events = [StepEvent(step, 1, overflow=value) for step, value in enumerate(pattern, start=1)]
    assert fired(OnOverflow(), events) == [11, 13]
    assert fired(OnOverflow(consecutive=2), events) == [14]


def test_a_lasting_spike_fires_once_and_a_single_wild_batch_does_not():
    noise = np.random.default_rng(0).normal(0, 0.05, 300)
    course = 3 + noise
    assert fired(OnLossSpike(), losses(course)) == []
    course[150] = 9.0
    assert fired(OnLossSpike(), losses(course)) == []
    course[200:] += 2.0
    assert fired(OnLossSpike(), losses(course)) == [203]


def test_a_loss_that_is_no_number_is_a_spike():
    course = list(2 + np.random.default_rng(2).normal(0, 0.05, 40))
    assert fired(OnLossSpike(), losses(course + [math.nan] * 3)) == [43]


def test_a_loss_that_is_no_number_from_the_first_step_is_a_spike():
    assert fired(OnLossSpike(), losses([math.nan] * 5)) == [3]


def test_a_scale_of_zero_after_calibration_is_a_drop():
    assert fired(OnLossScaleDrop(), scales([2.0**15] * 10 + [0.0, 0.0, 0.0])) == [11]
    assert fired(OnLossScaleDrop(), scales([0.0] * 5)) == []


def test_falling_loss_is_healthy():
    course = 6 * np.exp(-np.arange(400) / 60) + 2 + np.random.default_rng(1).normal(0, 0.03, 400)
    assert fired(OnLossSpike(), losses(course)) == []
