"""Everything that follows from plan and evidence: results, comparison. The model isn't needed, nor is MindSpore."""

from dataclasses import dataclass
from typing import Any

from evalkit.gate.compare import compare
from evalkit.gate.comparison import Comparison
from evalkit.metrics.context import MetricContext
from evalkit.metrics.evaluate import evaluate
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.plan import context_from_plan, plan_digest, read_plan
from evalkit.runs.results_io import Results, build_results


@dataclass(frozen=True)
class Derived:
    """What a run's evidence says.

    Attributes:
        results: of the candidate.
        baseline_results, comparison: None where the run has no baseline.
    """

    results: Results
    baseline_results: Results | None
    comparison: Comparison | None


def derive(folder: RunFolder, context: MetricContext | None = None) -> Derived:
    """Compute results and comparison of a run folder.

    Args:
        folder: a run whose evidence is complete.
        context: other settings than the plan's (another confidence, more k values).

    Raises:
        InputError: plan or evidence is missing or damaged.
    """
    plan = read_plan(folder)
    candidate = read_evidence(folder, "candidate")
    baseline = read_evidence(folder, "baseline") if plan["baseline"] is not None else None
    return derive_from(plan, candidate, baseline, context or context_from_plan(plan))


def derive_from(
    plan: dict[str, Any], candidate: Evidence, baseline: Evidence | None, context: MetricContext
) -> Derived:
    """Compute results and comparison from a plan and evidence in memory."""
    results = _results(plan, plan["candidate"], candidate, context)
    if baseline is None:
        return Derived(results, None, None)
    baseline_results = _results(plan, plan["baseline"], baseline, context)
    comparison = compare(candidate, baseline, context, results, baseline_results)
    return Derived(results, baseline_results, comparison)


def _results(
    plan: dict[str, Any], model: dict[str, Any], evidence: Evidence, context: MetricContext
) -> Results:
    return build_results(
        evidence,
        evaluate(evidence, context),
        run_id=plan["run_id"],
        plan_sha256=plan_digest(plan),
        model_digest=model["model_digest"],
    )
