"""The view model: everything a report shows, as text and strips, from one run."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evalkit.report import numbers
from evalkit.report.changes import ChangeBlock, change_blocks, change_view, key_name
from evalkit.report.conservation import conservation_sentence
from evalkit.report.dialogues import DialogueSection, dialogue_section, predictor_notice
from evalkit.report.metrics import Figure, MetricSection, figures, sections
from evalkit.report.promotions import forced_notices, promotion_sentences
from evalkit.report.reliability import ReliabilityCurve, reliability_curves
from evalkit.report.resampling import drift_notice
from evalkit.report.robustness import RobustnessBlock, robustness_blocks
from evalkit.report.rules import SYMBOLS, RuleView, rule_views
from evalkit.report.samples import SampleView, worst_samples
from evalkit.report.source import ReportSource
from evalkit.runs.results_io import Results

NOT_JUDGED = "NOT JUDGED"

_MEANINGS = {
    "PASS": "The candidate may be released under this policy.",
    "FAIL": "The candidate may not be released: at least one blocking rule is violated.",
    "INCONCLUSIVE": "The evidence doesn't decide: this is not a pass. See what each open rule needs.",
    NOT_JUDGED: "The scenario has no gate, so nothing was judged.",
}


@dataclass(frozen=True)
class VerdictView:
    """The verdict in words."""

    word: str
    symbol: str
    meaning: str
    reason: str
    warning: str
    false_fail: str
    policy_sha256: str
    confidence: str


@dataclass(frozen=True)
class ModelView:
    """Who was measured."""

    role: str
    name: str
    digest: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Fact:
    """A named value of each model (baseline empty where there is none)."""

    name: str
    candidate: str
    baseline: str


@dataclass(frozen=True)
class ReportView:
    """The whole report, in reading order."""

    title: str
    run_id: str
    created: str
    verdict: VerdictView
    notices: tuple[str, ...]
    models: tuple[ModelView, ...]
    rules: tuple[RuleView, ...]
    figures: tuple[Figure, ...]
    sections: tuple[MetricSection, ...]
    reliability: tuple[ReliabilityCurve, ...]
    robustness: tuple[RobustnessBlock, ...]
    changes: tuple[ChangeBlock, ...]
    has_baseline: bool
    interval_confidence: str
    samples: tuple[SampleView, ...]
    dialogues: DialogueSection | None
    conservation: tuple[Fact, ...]
    conserved: tuple[tuple[str, str], ...]
    signatures: tuple[tuple[str, str], ...]
    digests: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    promotions: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()


def build_view(source: ReportSource) -> ReportView:
    """Turn a run into what its reports show."""
    results = source.results
    return ReportView(
        title=scenario_name(source.plan),
        run_id=results.run_id,
        created=str(source.plan.get("created", "")),
        verdict=_verdict(source),
        notices=tuple(_notices(source)),
        models=tuple(_models(source)),
        rules=tuple(rule_views(source.verdict)) if source.verdict else (),
        figures=tuple(figures(source)),
        sections=tuple(sections(source)),
        reliability=tuple(reliability_curves(source)),
        robustness=tuple(robustness_blocks(source)),
        changes=tuple(change_blocks(source)),
        has_baseline=source.baseline_results is not None,
        interval_confidence=_interval_confidence(results),
        samples=tuple(worst_samples(source.candidate, source.baseline)),
        dialogues=dialogue_section(source),
        conservation=tuple(_conservation(source)),
        conserved=tuple(_conserved(source)),
        signatures=tuple(sorted(source.context.signatures.items())),
        digests=tuple(_digests(source)),
        environment=tuple(_flatten(source.plan.get("environment", {}))),
        promotions=tuple(promotion_sentences(source.promotions)),
        forced=tuple(forced_notices(source.promotions)),
    )


def scenario_name(plan: Mapping[str, Any]) -> str:
    """The scenario's name; the run's id where the plan names none (texts scored alone)."""
    scenario = plan.get("scenario")
    name = scenario.get("name") if isinstance(scenario, Mapping) else None
    return str(name or plan.get("name") or plan.get("run_id", "run"))


def _verdict(source: ReportSource) -> VerdictView:
    verdict = source.verdict
    if verdict is None:
        return VerdictView(NOT_JUDGED, "–", _MEANINGS[NOT_JUDGED], "", "", "", "", "")
    chance = numbers.number(verdict.false_fail_probability, "share")
    return VerdictView(
        word=verdict.verdict,
        symbol=SYMBOLS[verdict.verdict],
        meaning=_MEANINGS[verdict.verdict],
        reason=verdict.reason,
        warning=verdict.warning or "",
        false_fail=f"A FAIL although all is well: chance at most {chance} ({verdict.false_fail_assumption}).",
        policy_sha256=verdict.policy_sha256,
        confidence=f"{100 * verdict.policy['confidence']:g} %",
    )


def _notices(source: ReportSource) -> Iterator[str]:
    """What a reader must know before any number."""
    results, verdict = source.results, source.verdict
    yield from forced_notices(source.promotions)
    if source.registry_problem is not None:
        yield f"Forced promotions can't be shown, since the registry can't be read: {source.registry_problem}."
    if verdict is not None and verdict.first_release:
        yield "First release: rules about change against a baseline were not applied, by explicit choice."
    for role in ("candidate", "baseline"):
        model = source.plan.get(role)
        if isinstance(model, Mapping) and model.get("identity") == "declared":
            yield f"The identity of the {role}, {model.get('model_digest')}, is {model.get('identity_note')}."
    if not results.complete:
        yield "The run is partial: not everything planned was measured."
    for side, item in (("candidate", results), ("baseline", source.baseline_results)):
        if item is None:
            continue
        errors = [
            f"{number} {kind} {status.replace('_', ' ')}"
            for kind, statuses in item.counts.items()
            for status, number in statuses.items()
            if number and status != "ok"
        ]
        if errors:
            yield f"Records of the {side} that are not ok: {', '.join(errors)}."
    for side, item in (("candidate", results), ("baseline", source.baseline_results)):
        for metric in item.metrics if item is not None else ():
            if isinstance(metric.details.get("warning"), str):
                yield f"{metric.name} of the {side}: {metric.details['warning']}."
    unwatched = list(_unwatched_regressions(source))
    if unwatched:
        yield f"Clearly worse than the baseline, and no rule watches it: {', '.join(unwatched)}."
    drift = drift_notice(source.results.metrics)
    if drift is not None:
        yield drift
    predicted = any(
        one.name == "dialogue/satisfaction" and one.value is not None for one in source.results.metrics
    )
    if source.context.dialogues is not None and (
        predicted or source.context.dialogues.satisfaction_error is not None
    ):
        yield predictor_notice(source.context.dialogues)


def _unwatched_regressions(source: ReportSource) -> Iterator[str]:
    """Metrics whose whole paired interval is worse and that no rule names; statistics of single tokens and of perturbed texts left out."""
    if source.comparison is None:
        return
    watched = set() if source.verdict is None else {rule.metric for rule in source.verdict.rules}
    for compared in source.comparison.metrics:
        single_tokens = compared.name.startswith(("logits/", "calibration/top1_", "robustness/"))
        if compared.slice is None and compared.name not in watched and not single_tokens:
            change = change_view(compared)
            if change.tone == "worse":
                yield f"{key_name(compared.name, compared.k, None)} {change.value}"


def _models(source: ReportSource) -> Iterator[ModelView]:
    for role in ("candidate", "baseline"):
        model = source.plan.get(role)
        if not isinstance(model, Mapping):
            continue
        spec = model.get("model") or {}
        training = model.get("training") or {}
        facts = [
            ("identity", model.get("identity_note")),
            ("endpoint", model.get("endpoint")),
            ("prompts", model.get("prompts")),
            ("family", spec.get("family")),
            (
                "parameters",
                numbers.count(spec["parameters"]) if isinstance(spec.get("parameters"), int) else None,
            ),
            ("attention window", spec.get("attention_window") or ("all" if spec else None)),
            ("max length", spec.get("max_length") or model.get("max_length")),
            ("training steps", training.get("steps")),
        ]
        yield ModelView(
            role=role,
            name=str(model.get("name", role)),
            digest=str(model.get("model_digest", "")),
            facts=tuple((name, str(value)) for name, value in facts if value is not None),
        )


def _conservation(source: ReportSource) -> Iterator[Fact]:
    ours = _counted(source.results)
    theirs = dict(_counted(source.baseline_results)) if source.baseline_results else {}
    for name, value in ours:
        yield Fact(name, numbers.count(value), numbers.count(theirs[name]) if name in theirs else "")
    cached = [
        "" if evidence is None else numbers.count(evidence.columns.from_cache())
        for evidence in (source.candidate, source.baseline)
    ]
    yield Fact("texts and decisions read from the result cache", *cached)


def _conserved(source: ReportSource) -> Iterator[tuple[str, str]]:
    """The check in words, for each model whose texts were scored."""
    for side, item in (("Candidate", source.results), ("Baseline", source.baseline_results)):
        sentence = "" if item is None else conservation_sentence(item.conservation)
        if sentence:
            yield side, sentence


def _counted(results: Results) -> list[tuple[str, int]]:
    rows = [
        (f"texts: {name.replace('_', ' ')}", value) for name, value in asdict(results.conservation).items()
    ]
    rows[0] = ("texts", rows[0][1])
    for kind, noun in (("risk", "decisions"), ("turn", "turns")):
        statuses = results.counts[kind]
        rows.append((noun, sum(statuses.values())))
        rows += [(f"{noun}: {status.replace('_', ' ')}", number) for status, number in statuses.items()]
    return rows


def _digests(source: ReportSource) -> Iterator[tuple[str, str]]:
    yield "plan", source.results.plan_sha256
    yield "candidate model", source.results.model_digest
    if source.baseline_results is not None:
        yield "baseline model", source.baseline_results.model_digest
    if source.verdict is not None:
        yield "policy", source.verdict.policy_sha256
    if source.signed_by is not None:
        yield "signed by key (check it with evalkit verify --key)", source.signed_by
    for name, value in _flatten(source.plan):
        if name.rpartition(".")[2].endswith(("sha256", "digest")) and not name.endswith("model_digest"):
            yield name, value


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of nested mappings as dotted names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield prefix, str(value)


def _interval_confidence(results: Results) -> str:
    found = next((metric.interval for metric in results.metrics if metric.interval is not None), None)
    return numbers.confidence(found)
