"""A run from beginning to end: plan, measure, derive, seal, judge, report."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evalkit.backends.choice import DEFAULT, BackendName
from evalkit.backends.models import MeasuredModel
from evalkit.bundle import Bundle, load_bundle
from evalkit.console import Progress
from evalkit.errors import IncompleteError, InputError
from evalkit.files import write_bytes_atomic, write_json_atomic
from evalkit.gate.judge import judge
from evalkit.gate.policy import policy_digest
from evalkit.gate.verdict import Verdict
from evalkit.metrics.references import trusted_modules
from evalkit.replay.access import Access
from evalkit.report import write_reports
from evalkit.runs.derive import Derived, derive_from, run_policy
from evalkit.runs.folder import RunFolder
from evalkit.runs.interruption import resumable, terminable
from evalkit.runs.judging import plan_facts, store_verdict
from evalkit.runs.logits_io import check_logits
from evalkit.runs.looks import next_look
from evalkit.runs.measure import check_sandbox, measure
from evalkit.runs.plan import new_run_id, now_utc
from evalkit.runs.planning import build_plan
from evalkit.runs.promotion import promoted_bundle
from evalkit.runs.results_io import Results
from evalkit.runs.seal import write_seal
from evalkit.runs.served import check_endpoints
from evalkit.runs.setup import RunSetup, prepare
from evalkit.scenario.loader import LoadedScenario, scenario_from_texts
from evalkit.scenario.schema import Window

NOT_JUDGED = "NOT JUDGED"


@dataclass(frozen=True)
class RunRequest:
    """What `evalkit run` was asked for.

    Attributes:
        scenario: the scenario.
        candidate, baseline: bundle folders that overrule the scenario's.
        baseline_alias: an alias of the registry that overrules it likewise.
        out: the run folder to create; None: one under runs/.
        sandbox_address: of a sandbox that serves the candidate already.
        sandbox_access: TLS and token for it.
        keep_tokens, keep_logits: write per-token statistics, raw logits.
        backend: what scores the bundles' graphs.
        use_cache: read scores from the result cache, and keep new ones there.
    """

    scenario: LoadedScenario
    candidate: Path | None = None
    baseline: Path | None = None
    baseline_alias: str | None = None
    out: Path | None = None
    sandbox_address: str | None = None
    sandbox_access: Access = Access()  # noqa: RUF009
    keep_tokens: bool = False
    keep_logits: bool = False
    backend: BackendName = DEFAULT
    use_cache: bool = True


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
    with terminable():
        loaded = request.scenario
        candidate, baseline = _models(request)
        setup = prepare(loaded, candidate, baseline, request.backend)
        if request.sandbox_address is not None:
            check_sandbox(setup, request.sandbox_address, request.sandbox_access)
        if request.keep_logits:
            check_logits(setup)
        check_endpoints(setup)
        run_id = new_run_id()
        folder = _new_folder(
            request.out or Path("runs") / f"{loaded.scenario.name}-{run_id}",
            [model.model for model in setup.models if isinstance(model.model, Bundle)],
        )
        look = next_look(
            loaded.scenario.name,
            loaded.digest,
            candidate.model_digest,
            None if loaded.policy is None else policy_digest(loaded.policy),
        )
        inputs = _inputs(request, candidate, baseline)
        plan = build_plan(setup, inputs, run_id=run_id, created=now_utc(), look=look)
        write_json_atomic(folder.plan, plan)
        with resumable(folder), trusted_modules(loaded.additions.modules):
            return complete_run(
                folder, plan, setup, progress, request.sandbox_address, request.sandbox_access
            )


def complete_run(
    folder: RunFolder,
    plan: dict[str, Any],
    setup: RunSetup,
    progress: Progress,
    sandbox_address: str | None,
    sandbox_access: Access = Access(),  # noqa: B008
) -> RunOutcome:
    """Measure what isn't measured yet of a planned run, derive, seal, judge and report.

    Args:
        folder: holds the plan, and perhaps journals.
        plan: of the run.
        setup: that the plan was made of.
        progress: shows the work.
        sandbox_address: of a running sandbox for the candidate; None: one is started.
        sandbox_access: TLS and token for it.
    """
    evidence = [
        measure(
            setup,
            model,
            folder,
            progress,
            sandbox_address=sandbox_address if model.side == "candidate" else None,
            sandbox_access=sandbox_access,
            keep_tokens=plan["inputs"]["keep_tokens"],
            keep_logits=plan["inputs"]["keep_logits"],
            cache_run_id=plan["run_id"] if plan["inputs"]["use_cache"] else None,
        )
        for model in setup.models
    ]
    baseline = evidence[1] if len(evidence) > 1 else None
    derived = derive_from(plan, evidence[0], baseline, run_policy(plan))
    for name, content in derived.files().items():
        write_bytes_atomic(folder.path / name, content)
    write_seal(folder.path)
    return close_run(folder, plan, derived)


def close_run(folder: RunFolder, plan: dict[str, Any], derived: Derived) -> RunOutcome:
    """Judge a sealed run under its own policy, where it has one, and write its reports."""
    verdict, policy = None, run_policy(plan)
    if policy is not None:
        verdict = judge(derived.results, derived.comparison, policy, **plan_facts(plan))
        store_verdict(folder, verdict)
    reports = write_reports(folder, report_formats(plan))
    return RunOutcome(folder, derived.results, verdict, reports)


def report_formats(plan: dict[str, Any]) -> tuple[str, ...]:
    """The reports that a run's scenario asks for."""
    return tuple(plan["scenario"]["output"]["formats"])


def score_file(
    model: Path,
    data: Path,
    out: Path | None,
    window: Window | None,
    keep_tokens: bool,
    progress: Progress,
    backend: BackendName = DEFAULT,
    *,
    keep_logits: bool = False,
    use_cache: bool = True,
) -> Results:
    """Score a file of texts with a bundle.

    Args:
        model: bundle folder.
        data: JSON lines of texts.
        out: keep the run here; None: nothing is kept.
        window: None: max_length / max_length / first.
        keep_tokens, keep_logits: write per-token statistics, raw logits.
        progress: shows the work.
        backend: what scores the bundle's graph.
        use_cache: see `RunRequest`.

    Raises:
        InputError: bundle, data or window don't fit.
    """
    request = RunRequest(
        scenario_from_texts(data, window),
        candidate=model,
        out=out,
        keep_tokens=keep_tokens,
        keep_logits=keep_logits,
        backend=backend,
        use_cache=use_cache,
    )
    if out is not None:
        return run_scenario(request, progress).results
    scratch = Path(tempfile.mkdtemp(prefix="evalkit-score-"))
    try:
        return run_scenario(replace(request, out=scratch / "run"), progress).results
    except IncompleteError:
        raise IncompleteError("interrupted; nothing is kept without --out RUN") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _models(request: RunRequest) -> tuple[MeasuredModel, MeasuredModel | None]:
    loaded = request.scenario
    baseline = None if loaded.scenario.first_release else _baseline(request)
    candidate = request.candidate or loaded.candidate_model or loaded.bundle
    if candidate is None:
        raise loaded.error(("model",), "no model is named; add `model: {bundle: ...}` or use --model")
    return _loaded(candidate), baseline


def _baseline(request: RunRequest) -> MeasuredModel | None:
    loaded, alias = request.scenario, _baseline_alias(request)
    if alias is not None:
        return promoted_bundle(alias)
    named = request.baseline or loaded.baseline_model or loaded.baseline
    return None if named is None else _loaded(named)


def _baseline_alias(request: RunRequest) -> str | None:
    if request.baseline_alias is None and request.baseline is None:
        return request.scenario.baseline_alias
    return request.baseline_alias


def _loaded(model: Path | MeasuredModel) -> MeasuredModel:
    return load_bundle(model) if isinstance(model, Path) else model


def _new_folder(path: Path, bundles: Sequence[Bundle]) -> RunFolder:
    for bundle in bundles:
        if path.resolve().is_relative_to(bundle.path.resolve()):
            raise InputError(
                f"{path}: lies inside the bundle {bundle.path}; choose a folder outside it with --out"
            )
    run = RunFolder(path)
    if run.plan.is_file() and not run.seal.is_file():
        raise InputError(
            f"{path}: exists already and holds an unfinished run; finish it with `evalkit resume {path}`"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path}: exists already; remove it or choose another folder with --out")
    path.mkdir(parents=True, exist_ok=True)
    return run


def _inputs(request: RunRequest, candidate: MeasuredModel, baseline: MeasuredModel | None) -> dict[str, Any]:
    """Where everything was found, so that `evalkit resume` works from any folder."""
    source = request.scenario.source
    texts = request.scenario.text_data
    return {
        "scenario": None if source is None else str(source.path.resolve()),
        "texts": str(texts) if source is None else None,
        "candidate": _folder(candidate),
        "baseline": _folder(baseline),
        "baseline_alias": None if baseline is None else _baseline_alias(request),
        "sandbox": request.sandbox_address,
        "keep_tokens": request.keep_tokens,
        "keep_logits": request.keep_logits,
        "use_cache": request.use_cache,
    }


def _folder(model: MeasuredModel | None) -> str | None:
    """Of a bundle; where another model is, the scenario says."""
    return str(model.path.resolve()) if isinstance(model, Bundle) else None
