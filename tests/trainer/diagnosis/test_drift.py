"""Slow divergence: found where the loss rises above what it held, and not where it only comes back from a dip."""

import random
from pathlib import Path

import pytest

from trainer.diagnosis.spikes.detect import find_rises
from trainer.diagnosis.spikes.records import Stretch, TrainingStep


def rises(losses):
    steps = (TrainingStep(Path("log"), at, at, loss) for at, loss in enumerate(losses, start=1))
    return find_rises(Stretch(1, tuple(steps)))


def losses_of(length, *, falling=False, noise=0.03, seed=7):
    generator = random.Random(seed)
    start = 4.0 if falling else 0.0
    return [2.0 + start * 0.99**at + generator.gauss(0, noise) for at in range(length)]


def dipped(losses, width, *, depth=0.3, gradual=0, at=None):
    """The losses with a dip of `width` in them; falling and rising in `gradual` steps each."""
    begin = (len(losses) * 3 // 5 if at is None else at) - gradual
    end = begin + 2 * gradual + width

    def share(place):
        return max(0.0, min(1.0, (place - begin + 1) / (gradual + 1), (end - place) / (gradual + 1)))

    return [loss * (1 - depth * share(place)) for place, loss in enumerate(losses)]


def diverging(losses, end=1.6):
    begin = len(losses) * 3 // 5
    growth = (end - 1) / (len(losses) - begin)
    return [loss * (1 + growth * max(0, at - begin)) for at, loss in enumerate(losses)]


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize(
    ("length", "width", "gradual"),
    [(100, 12, 0), (200, 25, 0), (200, 12, 8), (600, 45, 0), (2000, 12, 0), (2000, 45, 0), (2000, 20, 15)],
)
def test_a_dip_that_comes_back_is_no_divergence(length, width, gradual, falling):
    """Some easy batches in a row (a shard, a short document kind): what comes after is what was before."""
    found = rises(dipped(losses_of(length, falling=falling), width, gradual=gradual))
    assert found.drift is None and not found.spikes


def test_several_dips_are_none_either():
    losses = losses_of(1500)
    for at in (500, 800, 1100, 1400):
        losses = dipped(losses, 15, at=at)
    assert rises(losses).drift is None


@pytest.mark.parametrize("dips", [(), (700,), (700, 1100)])
def test_a_divergence_after_a_dip_is_found_from_the_level_before_it(dips):
    losses = losses_of(4000, falling=True)
    for at in dips:
        losses = dipped(losses, 12, at=at)
    drift = rises(diverging(losses)).drift
    assert drift is not None
    assert drift.level == pytest.approx(2.0, rel=0.02)  # and not the dip's 1.4
    # 1.2 of it is reached after a third of the rise to 1.6.
    assert drift.start.step == pytest.approx(2400 + 1600 / 3, abs=60)


def test_a_better_level_that_stayed_counts():
    """Not a dip: it held for far longer than a window. What rises above it slowly diverges."""
    losses = [loss * (0.7 if at >= 800 else 1.0) for at, loss in enumerate(losses_of(4000))]
    drift = rises(diverging(losses)).drift
    assert drift is not None and drift.level == pytest.approx(1.4, rel=0.02)


def test_a_jump_that_was_told_as_a_spike_isnt_told_again():
    losses = [loss * (1.5 if at >= 1000 else 1.0) for at, loss in enumerate(losses_of(3000))]
    found = rises(losses)
    assert [spike.recovered for spike in found.spikes] == [None] and found.drift is None


def test_too_few_losses_or_one_that_is_no_number_say_nothing():
    assert rises(losses_of(19)).drift is None
    assert rises([]).drift is None
    assert rises([*diverging(losses_of(2000))[:-1], float("nan")]).drift is None


def test_a_loss_that_has_gone_to_nothing_doesnt_diverge_by_a_share_of_it():
    """Seen with 0.0 that became 1e-9: an error, told as a divergence."""
    learnt = [0.0002] * 200
    assert rises([*learnt, *[0.0004] * 100]).drift is None
    assert rises([*[0.0] * 200, *[1e-9] * 100]).drift is None
    rising = [0.0002 + 0.00002 * at for at in range(1000)]
    assert rises([*learnt, *rising]).drift is not None
