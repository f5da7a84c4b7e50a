"""What a report shows, read from a run folder: files as they were written, nothing computed again.

Only promotions come from elsewhere, the registry: they are later than the run.
"""

from dataclasses import dataclass
from typing import Any

from evalkit.errors import InputError
from evalkit.gate.comparison import Comparison, read_comparison
from evalkit.gate.verdict import Verdict, read_verdict
from evalkit.metrics.context import MetricContext
from evalkit.report.promotions import read_promotions
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import read_evidence_to_show
from evalkit.runs.folder import RunFolder
from evalkit.runs.plan import context_from_plan, read_plan
from evalkit.runs.registry_rows import AuditEntry
from evalkit.runs.results_io import Results, read_results
from evalkit.runs.signature import signer


@dataclass(frozen=True)
class ReportSource:
    """One run, ready to be shown.

    Attributes:
        plan: plan.json.
        context: the measurement settings that the plan holds.
        verdict: the latest; None where the scenario has no gate.
        baseline_results, comparison, baseline: None where the run has no baseline.
        signed_by: fingerprint of the key that the seal names, None for an unsigned run. It isn't checked here.
        promotions: from the registry's audit; registry_problem: why it couldn't be read, or None.
    """

    plan: dict[str, Any]
    context: MetricContext
    results: Results
    candidate: Evidence
    verdict: Verdict | None = None
    baseline_results: Results | None = None
    comparison: Comparison | None = None
    baseline: Evidence | None = None
    signed_by: str | None = None
    promotions: tuple[AuditEntry, ...] = ()
    registry_problem: str | None = None


def load_source(folder: RunFolder) -> ReportSource:
    """Read a finished run.

    Raises:
        InputError: a file is missing or damaged.
    """
    plan = read_plan(folder)
    if not folder.results.is_file():
        raise InputError(
            f"{folder.results}: no such file; finish the run with `evalkit resume {folder.path}`"
        )
    promotions, registry_problem = read_promotions(plan)
    has_baseline = folder.baseline_results.is_file()
    return ReportSource(
        plan=plan,
        context=context_from_plan(plan),
        results=read_results(folder.results),
        candidate=read_evidence_to_show(folder, "candidate"),
        verdict=read_verdict(folder.verdict) if folder.verdict.is_file() else None,
        baseline_results=read_results(folder.baseline_results) if has_baseline else None,
        comparison=read_comparison(folder.comparison) if folder.comparison.is_file() else None,
        baseline=read_evidence_to_show(folder, "baseline") if has_baseline else None,
        signed_by=_signer(folder),
        promotions=promotions,
        registry_problem=registry_problem,
    )


def _signer(folder: RunFolder) -> str | None:
    try:
        return signer(folder)
    except InputError:
        # No seal, or a broken one: a matter of `evalkit verify`, not of a projection.
        return None
