"""A run as a review meets it: many rules of every outcome, 200 dialogues, slices, perturbations, calibration."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from evalkit.metrics.context import RobustnessSetup
from evalkit.metrics.registry import spec_for
from evalkit.metrics.result import MetricResult
from evalkit.metrics.robustness_specs import robustness_spec
from evalkit.report.source import ReportSource, load_source
from evalkit.runs.evidence import Evidence
from evalkit.runs.registry_rows import AuditEntry
from tests.evalkit import fake_run

RULES: list[dict[str, Any]] = [
    {"metric": "perplexity/long_tail", "change": {"max_relative_increase": 0.05}},
    {"metric": "perplexity/head", "max": 12},
    {"metric": "risk/high_risk_recall", "min": 0.9},
    {"metric": "risk/false_reject_rate", "max": 0.9},
    {"metric": "dialogue/pass_hat_k", "k": 3, "min": 0.9},
    {"metric": "dialogue/pass_hat_k", "k": 1, "min": 0.5},
    {"metric": "dialogue/consistency", "change": {"max_decrease": 0.01}},
    {"metric": "dialogue/satisfaction", "min": 4.0, "severity": "warn"},
    {"metric": "latency/turn_overhead", "within_ms": 15, "share": 0.99, "severity": "warn"},
    {"metric": "latency/first_token", "max": 4.2},
    {"metric": "calibration/ece", "max": 0.2},
    {"metric": "bits_per_byte", "max": 4},
]
PERTURBATIONS = (
    RobustnessSetup("typos", "respelt", "a" * 64, "typos (rate 0.05)"),
    RobustnessSetup("drop_sentences", "removed", "b" * 64, "drop_sentences (rate 0.3)"),
)


def evidence(seed: int, worse: float, texts: int, dialogues: int) -> Evidence:
    """As many texts as decisions, and dialogues of three trials; `worse` makes another model of it."""
    made = fake_run.random_evidence(seed, texts=texts, dialogues=dialogues, worse=worse)
    random = Random(seed)
    turns = tuple(
        replace(
            turn,
            first_token_ns=int(random.lognormvariate(1.4 + worse, 0.3) * 1e6),
            turn_overhead_ns=int(random.lognormvariate(0.5 + worse, 0.6) * 1e6),
            satisfaction=min(5.0, max(1.0, random.gauss(4.1 - worse, 0.5))),
        )
        for turn in made.turns
    )
    return Evidence(made.samples, turns)


def source(path: Path, *, texts: int = 300, dialogues: int = 200) -> ReportSource:
    """The run, written to `path` as a real one is and read again; perturbed metrics and a forced promotion are added."""
    models = [evidence(7, worse, texts, dialogues) for worse in (0.12, 0.0)]
    run = fake_run.write_run(path, RULES, models[0], models[1])
    read = load_source(run)
    results = replace(read.results, metrics=(*read.results.metrics, *_robust(0.0)))
    baseline = read.baseline_results
    assert baseline is not None
    return replace(
        read,
        results=results,
        baseline_results=replace(baseline, metrics=(*baseline.metrics, *_robust(0.02))),
        context=replace(read.context, robustness=PERTURBATIONS),
        signed_by="7f3a9c2e5b1d48066e1f0d",
        promotions=(_forced(),),
    )


def _robust(less: float) -> list[MetricResult]:
    found = []
    for setup, change in zip(PERTURBATIONS, (0.31, -0.04), strict=True):
        for metric in ("perplexity/byte", "bits_per_byte", "logits/top_k_accuracy"):
            spec = robustness_spec(setup.name, spec_for(metric), metric)
            clean = 0.61 if metric.startswith("logits") else 2.31
            value = -change / 4 if metric.startswith("logits") else change - less
            found.append(
                MetricResult(
                    name=spec.name,
                    value=value,
                    reason=None,
                    unit=spec.unit,
                    direction=spec.direction,
                    n=300,
                    clusters=300,
                    signature="robust|v:1",
                    interval=fake_run.interval(value - 0.05, value + 0.05),
                    bounds=fake_run.interval(value - 0.04, value + 0.04, 1),
                    action=spec.action,
                    k=None,
                    slice=None,
                    coverage=1.0,
                    details={
                        "texts_compared": 300,
                        "texts_changed": 241,
                        "clean": clean,
                        "perturbed": clean + value if metric.startswith("logits") else clean * (1 + value),
                        "worst_slice": "cards",
                        "worst_slice_value": change * 1.4,
                        "slices_measured": 4,
                    },
                )
            )
    return found


def _forced() -> AuditEntry:
    return AuditEntry(
        seq=4,
        at="2026-11-28T17:02:11Z",
        who="release-manager",
        action="force",
        alias="production",
        previous_digest=fake_run.BASELINE,
        model_digest=fake_run.CANDIDATE,
        run_id="20261128-160000-demo",
        policy_sha256="c" * 64,
        scenario_sha256="d" * 64,
        verdict="FAIL",
        reason="hotfix for the branch closure, agreed with risk",
        overridden="has the verdict FAIL under the policy that production demands",
    )
