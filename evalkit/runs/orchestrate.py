"""A run from beginning to end: plan, measure, derive, seal, judge, report."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalkit.bundle import Bundle, load_bundle
from evalkit.console import Progress
from evalkit.errors import InputError
from evalkit.files import write_bytes_atomic, write_json_atomic
from evalkit.gate.judge import judge
from evalkit.gate.policy import check_policy, policy_digest, resolve_policy
from evalkit.gate.verdict import Verdict
from evalkit.report import write_reports
from evalkit.runs.derive import Derived, derive_from
from evalkit.runs.evidence import Evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.judging import store_verdict
from evalkit.runs.measure import check_sandbox, measure
from evalkit.runs.plan import SCHEMA, context_to_plan, describe_model, environment, new_run_id, now_utc
from evalkit.runs.results_io import Results
from evalkit.runs.seal import write_seal
from evalkit.runs.setup import RunSetup, data_digests, prepare
from evalkit.scenario.loader import LoadedScenario, scenario_from_texts
from evalkit.scenario.schema import Window
from evalkit.yaml_source import YamlSource

NOT_JUDGED = "NOT JUDGED"


@dataclass(frozen=True)
class RunRequest:
    """What `evalkit run` was asked for.

    Attributes:
        scenario: the scenario.
        candidate, baseline: bundle folders that overrule the scenario's.
        out: the run folder to create; None: one under runs/.
        sandbox_address: of a sandbox that serves the candidate already.
        keep_tokens: write per-token statistics.
    """

    scenario: LoadedScenario
    candidate: Path | None = None
    baseline: Path | None = None
    out: Path | None = None
    sandbox_address: str | None = None
    keep_tokens: bool = False


@dataclass(frozen=True)
class RunOutcome:
    """A finished run.

    Attributes:
        folder: where it lies.
        results: of the candidate.
        verdict: None where the scenario has no gate.
        reports: written files by format.
    """

    folder: RunFolder
    results: Results
    verdict: Verdict | None
    reports: dict[str, Path] = field(default_factory=dict)

    @property
    def verdict_text(self) -> str:
        """PASS, FAIL, INCONCLUSIVE or NOT JUDGED."""
        return NOT_JUDGED if self.verdict is None else self.verdict.verdict


def run_scenario(request: RunRequest, progress: Progress) -> RunOutcome:
    """Measure the candidate (and the baseline), compare, judge and report.

    Raises:
        InputError: bundles, data or settings don't fit; nothing was written.
        IncompleteError: the work stopped half-way; the run folder keeps the journals.
    """
    loaded = request.scenario
    _check_gate(loaded)
    setup = prepare(loaded, *_bundles(request))
    if request.sandbox_address is not None:
        check_sandbox(setup, request.sandbox_address)
    run_id = new_run_id()
    folder = _new_folder(request.out or Path("runs") / f"{loaded.scenario.name}-{run_id}")
    plan = _plan(setup, run_id)
    write_json_atomic(folder.plan, plan)
    evidence = [
        measure(
            setup,
            model,
            folder,
            progress,
            sandbox_address=request.sandbox_address if model.side == "candidate" else None,
            keep_tokens=request.keep_tokens,
        )
        for model in setup.models
    ]
    derived = _derive(plan, evidence, loaded)
    _write_results(folder, derived)
    write_seal(folder.path)
    verdict = None
    if loaded.policy is not None:
        verdict = judge(
            derived.results, derived.comparison, loaded.policy, first_release=loaded.scenario.first_release
        )
        store_verdict(folder, verdict)
    return RunOutcome(folder, derived.results, verdict, write_reports(folder, loaded.scenario.output.formats))


def score_file(
    model: Path, data: Path, out: Path | None, window: Window | None, keep_tokens: bool, progress: Progress
) -> Results:
    """Score a file of texts with a bundle.

    Args:
        model: bundle folder.
        data: JSON lines of texts.
        out: keep the run here; None: nothing is kept.
        window: None: max_length / max_length / first.
        keep_tokens: write per-token statistics.
        progress: shows the work.

    Raises:
        InputError: bundle, data or window don't fit.
    """
    loaded = scenario_from_texts(data, window)
    if out is not None:
        return run_scenario(
            RunRequest(loaded, candidate=model, out=out, keep_tokens=keep_tokens), progress
        ).results
    scratch = Path(tempfile.mkdtemp(prefix="evalkit-score-"))
    try:
        return run_scenario(RunRequest(loaded, candidate=model, out=scratch / "run"), progress).results
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check_gate(loaded: LoadedScenario) -> None:
    if loaded.policy is None or loaded.source is None or loaded.policy_path is None:
        return
    if loaded.policy_path == loaded.source.path:
        check_policy(loaded.policy, loaded.source, ("gate",))
    else:
        check_policy(loaded.policy, YamlSource(loaded.policy_path), ())


def _bundles(request: RunRequest) -> tuple[Bundle, Bundle | None]:
    loaded = request.scenario
    candidate = request.candidate or loaded.bundle
    if candidate is None:
        raise loaded.error(("model",), "no bundle is named; add `model: {bundle: ...}` or use --model")
    baseline = request.baseline or loaded.baseline
    if loaded.scenario.first_release:
        baseline = None
    return load_bundle(candidate), None if baseline is None else load_bundle(baseline)


def _new_folder(path: Path) -> RunFolder:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path}: exists already; remove it or choose another folder with --out")
    path.mkdir(parents=True, exist_ok=True)
    return RunFolder(path)


def _plan(setup: RunSetup, run_id: str) -> dict[str, Any]:
    loaded = setup.loaded
    models = {model.side: model for model in setup.models}
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "created": now_utc(),
        "scenario_file": loaded.name,
        "scenario": loaded.scenario.model_dump(mode="json"),
        "scenario_sha256": loaded.digest,
        "first_release": loaded.scenario.first_release,
        "seed": loaded.scenario.seed,
        "policy": None if loaded.policy is None else resolve_policy(loaded.policy),
        "policy_sha256": None if loaded.policy is None else policy_digest(loaded.policy),
        "candidate": describe_model(models["candidate"].bundle),
        "baseline": describe_model(models["baseline"].bundle) if "baseline" in models else None,
        "data": data_digests(loaded),
        "backend": {"name": "mindir", "precision": "fp32", "device": "CPU"},
        "measurement": {side: context_to_plan(model.context) for side, model in models.items()},
        "environment": environment(),
    }


def _derive(plan: dict[str, Any], evidence: list[Evidence], loaded: LoadedScenario) -> Derived:
    return derive_from(plan, evidence[0], evidence[1] if len(evidence) > 1 else None, loaded.policy)


def _write_results(folder: RunFolder, derived: Derived) -> None:
    write_bytes_atomic(folder.results, derived.results.to_bytes())
    if derived.baseline_results is not None and derived.comparison is not None:
        write_bytes_atomic(folder.baseline_results, derived.baseline_results.to_bytes())
        write_bytes_atomic(folder.comparison, derived.comparison.to_bytes())
