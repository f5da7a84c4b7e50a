"""E26: an unpaired test on paired runs misses what pairing by sample id shows (p 0.080 against 0.008)."""

from dataclasses import replace

from evalkit.gate.compare import compare
from evalkit.gate.judge import judge
from evalkit.metrics.evaluate import evaluate
from evalkit.runs.evidence import Evidence
from tests.evalkit.fake_run import BASELINE, CANDIDATE, context_for, policy, random_evidence, results

RULE = {"metric": "perplexity/token", "change": {"max_relative_increase": 0.02}}


def test_e26_paired_by_sample_id_whatever_the_order() -> None:
    theirs = random_evidence(4, texts=60, dialogues=0)
    # Each text gets about 10 % harder; between texts the loss varies by a factor of three.
    harder = tuple(
        replace(
            sample,
            nll=float(sum(round(1.1 * sums.nll) for sums in sample.classes.values())),
            classes={name: replace(sums, nll=round(1.1 * sums.nll)) for name, sums in sample.classes.items()},
        )
        for sample in theirs.samples
    )
    ours = Evidence(tuple(reversed(harder)))
    context = context_for(theirs)
    measured = results(evaluate(ours, context), ours, CANDIDATE)
    base = results(evaluate(theirs, context), theirs, BASELINE)
    own, other = measured.find("perplexity/token"), base.find("perplexity/token")
    assert own is not None and other is not None and own.interval is not None and other.interval is not None
    assert own.interval.low is not None and other.interval.high is not None
    # The two intervals overlap: unpaired, nothing could be said.
    assert own.interval.low < other.interval.high
    comparison = compare(ours, theirs, context, measured, base)
    verdict = judge(measured, comparison, policy([RULE]))
    assert verdict.rules[0].outcome == "FAIL"
