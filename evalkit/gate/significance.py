"""p-values beside the paired differences: the bootstrap of the change, and exact tests by cluster."""

from evalkit.gate.pairing import pair
from evalkit.metrics.context import MetricContext
from evalkit.metrics.estimators import MetricKey
from evalkit.metrics.evaluate import build_estimators
from evalkit.runs.evidence import Evidence
from evalkit.statistics.discordance import PairedTest, discordance
from evalkit.statistics.paired import bootstrap_test


def paired_tests(
    candidate: Evidence, baseline: Evidence, ctx: MetricContext
) -> dict[MetricKey, tuple[PairedTest, ...]]:
    """Tests of every metric that both models have on the samples that both hold.

    Args:
        candidate, baseline: all evidence of both models.
        ctx: settings of the evaluation; its seed is that of the bootstrap.

    Raises:
        InputError: an id is recorded twice.
    """
    pairing = pair(candidate, baseline, ctx.dialogues)
    theirs = {named.key: named.estimator for named in build_estimators(pairing.baseline, ctx)}
    tests: dict[MetricKey, tuple[PairedTest, ...]] = {}
    for named in build_estimators(pairing.candidate, ctx):
        ours, other = named.estimator, theirs.get(named.key)
        if ours is not None and other is not None:
            tests[named.key] = (bootstrap_test(ours, other, ctx.seed), discordance(ours, other))
    return tests
