"""Everything that follows from plan and evidence: results, comparison. The model isn't needed, nor is MindSpore."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from evalkit.errors import InputError
from evalkit.gate.compare import compare
from evalkit.gate.comparison import Comparison
from evalkit.metrics.context import MetricContext
from evalkit.metrics.evaluate import evaluate
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.json_fields import Reader
from evalkit.runs.plan import context_for_policy, context_from_plan, plan_digest, read_plan
from evalkit.runs.results_io import Results, build_results
from evalkit.scenario.schema import Policy

DERIVED_FILES = ("results.json", "results.baseline.json", "comparison.json")


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

    def files(self) -> dict[str, bytes]:
        """Name in the run folder and content of each part that there is."""
        parts = zip(DERIVED_FILES, (self.results, self.baseline_results, self.comparison), strict=True)
        return {name: part.to_bytes() for name, part in parts if part is not None}


def derive(folder: RunFolder, policy: Policy | None = None) -> Derived:
    """Compute results and comparison of a run folder.

    Args:
        folder: a run whose evidence is complete.
        policy: whose confidence, k values and budgets are used; None: the run's own.

    Raises:
        InputError: plan or evidence is missing or damaged.
    """
    plan = read_plan(folder)
    candidate = read_evidence(folder, "candidate")
    baseline = read_evidence(folder, "baseline") if plan["baseline"] is not None else None
    return derive_from(plan, candidate, baseline, policy or run_policy(plan))


def derive_from(
    plan: dict[str, Any], candidate: Evidence, baseline: Evidence | None, policy: Policy | None
) -> Derived:
    """Compute results and comparison from a plan and evidence in memory."""
    context = context_for_policy(context_from_plan(plan), policy)
    results = _results(plan, "candidate", candidate, context)
    if baseline is None:
        return Derived(results, None, None)
    baseline_context = context_for_policy(context_from_plan(plan, "baseline"), policy)
    baseline_results = _results(plan, "baseline", baseline, baseline_context)
    comparison = compare(
        candidate, baseline, context, candidate_results=results, baseline_results=baseline_results
    )
    return Derived(results, baseline_results, comparison)


def run_policy(plan: dict[str, Any]) -> Policy | None:
    """The policy that the plan holds, or None.

    Raises:
        InputError: the plan's policy isn't one.
    """
    if plan.get("policy") is None:
        return None
    try:
        return Policy.model_validate(plan["policy"])
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise InputError(f"plan.json: policy: {problem['msg']}; the file is damaged") from None


def _results(plan: dict[str, Any], side: str, evidence: Evidence, context: MetricContext) -> Results:
    return build_results(
        evidence,
        evaluate(evidence, context),
        run_id=Reader(plan, "plan.json").text("run_id"),
        plan_sha256=plan_digest(plan),
        model_digest=Reader(plan.get(side), f"plan.json: {side}").text("model_digest"),
    )
