"""Public faults of evaluation that differences under perturbations would share."""

from dataclasses import replace

from tests.evalkit.metrics.test_robustness import TYPOS, made, measured

NAME = "robustness/typos/perplexity/token"


def test_e30_texts_of_one_cluster_are_no_independent_samples():
    clean, changed = made()
    # The same text three times in each cluster adds nothing to what is known.
    copies = [
        [replace(one, sample_id=f"{one.sample_id}-{n}") for one in side for n in range(3)]
        for side in (clean, changed)
    ]
    once, thrice = measured(TYPOS, clean, changed)[NAME, None], measured(TYPOS, *copies)[NAME, None]
    assert thrice.clusters == once.clusters == 40
    assert abs(thrice.interval.high - once.interval.high) < 1e-12 * once.interval.high


def test_e33_a_text_that_fails_perturbed_does_not_leave_the_denominator():
    clean, changed = made()
    worst = max(range(len(changed)), key=lambda index: changed[index].nll - clean[index].nll)
    changed[worst] = replace(changed[worst], status="error", reason="not finite", classes={}, scored=0)
    result = measured(TYPOS, clean, changed)[NAME, None]
    assert result.coverage == 79 / 80  # min_coverage of a rule is 1 by default


def test_e41_nothing_measured_is_no_good_result():
    clean, _ = made()
    untouched = measured(TYPOS, clean, clean)[NAME, None]
    assert untouched.value is None and untouched.interval is None and untouched.reason
    empty = measured(TYPOS, clean, [])[NAME, None]
    assert empty.value is None and empty.coverage == 0 and empty.reason == "no text was scored"
