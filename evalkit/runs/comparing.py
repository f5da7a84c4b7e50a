"""Two runs side by side: the paired differences of their candidates, with intervals and p-values."""

from dataclasses import asdict, dataclass
from typing import Any

from evalkit.errors import InputError
from evalkit.gate.comparison import ComparedMetric, Comparison
from evalkit.gate.significance import paired_tests
from evalkit.metrics.estimators import MetricKey
from evalkit.runs.derive import derive_from, run_policy
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.plan import context_for_policy, context_from_plan, read_plan
from evalkit.runs.verify import check_sealed
from evalkit.statistics.discordance import PairedTest


@dataclass(frozen=True)
class RunComparison:
    """The candidates of two runs; a difference is that of the first less that of the second.

    Attributes:
        comparison: with the first run's model as candidate and the second's as baseline.
        tests: by metric; none where both runs measured the same model.
    """

    comparison: Comparison
    tests: dict[MetricKey, tuple[PairedTest, ...]]

    @property
    def same_model(self) -> bool:
        """Whether both runs measured one model."""
        return self.comparison.model_digest == self.comparison.baseline_model_digest

    def tests_of(self, metric: ComparedMetric) -> tuple[PairedTest, ...]:
        """The tests of one metric."""
        return self.tests.get(MetricKey(metric.name, metric.k, metric.slice), ())

    def to_dict(self) -> dict[str, Any]:
        """JSON values: comparison.json, and `tests` beside each metric."""
        content = self.comparison.to_dict()
        for entry, metric in zip(content["metrics"], self.comparison.metrics, strict=True):
            entry["tests"] = [asdict(test) for test in self.tests_of(metric)]
        return {"same_model": self.same_model, **content}


def compare_runs(first: RunFolder, second: RunFolder) -> RunComparison:
    """Compare the candidate of one run with that of another, on the samples that both measured.

    Confidence, k values and slices are those of the first run's policy.

    Raises:
        InputError: a run is unfinished or damaged, something was measured in different ways, or the runs have no
            sample in common.
    """
    plan, other_plan = read_plan(first), read_plan(second)
    for folder in (first, second):
        check_sealed(folder)
    _refuse_unequal_signatures(first, second, plan, other_plan)
    measurement = {**plan["measurement"], "baseline": other_plan["measurement"]["candidate"]}
    paired_plan = {**plan, "baseline": other_plan["candidate"], "measurement": measurement}
    ours, theirs = read_evidence(first, "candidate"), read_evidence(second, "candidate")
    policy = run_policy(plan)
    comparison = derive_from(paired_plan, ours, theirs, policy).comparison
    # With evidence of a baseline there always is a comparison.
    assert comparison is not None
    if not any(counts.paired for counts in comparison.pairs.values()):
        raise InputError(
            f"{first.path} and {second.path}: no text, decision or dialogue in common; compare runs of the same data"
        )
    result = RunComparison(comparison, {})
    if result.same_model:
        return result
    context = context_for_policy(context_from_plan(plan), policy)
    return RunComparison(comparison, paired_tests(ours, theirs, context))


def _refuse_unequal_signatures(
    first: RunFolder, second: RunFolder, plan: dict[str, Any], other_plan: dict[str, Any]
) -> None:
    ours = context_from_plan(plan).signatures
    theirs = context_from_plan(other_plan).signatures
    for family in sorted(ours.keys() & theirs.keys()):
        if ours[family] != theirs[family]:
            raise InputError(
                f"{first.path} and {second.path}: {family} metrics were measured in different ways: {ours[family]} and "
                f"{theirs[family]}; measure both runs alike"
            )
