"""A made-up run, small and realistic: what the tests of gate and report look at."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from evalkit.canonical import sha256_text
from evalkit.files import write_bytes_atomic, write_json_atomic
from evalkit.gate.comparison import ComparedMetric, Comparison, Difference, PairCounts
from evalkit.gate.judge import judge
from evalkit.gate.policy import resolve_policy
from evalkit.metrics.context import DialogueSetup, MetricContext, RiskSetup
from evalkit.metrics.registry import spec_for
from evalkit.metrics.result import Interval, MetricResult
from evalkit.report.source import ReportSource
from evalkit.runs.derive import derive
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import write_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.judging import judge_run, store_verdict
from evalkit.runs.plan import SCHEMA as PLAN_SCHEMA
from evalkit.runs.plan import context_to_plan
from evalkit.runs.records import ClassSums, ExpectationResult, SampleRecord, TurnRecord
from evalkit.runs.results_io import Results, build_results
from evalkit.runs.seal import write_seal
from evalkit.scenario.schema import Policy

CANDIDATE, BASELINE = sha256_text("candidate"), sha256_text("baseline")
SIGNATURES = {
    "text": "ppl|w:256/256/first|p:fp32|t:02ab|c:9be1|v:1",
    "bytes": "ppl|w:256/256/first|p:fp32|v:1",
    "words": "ppl|w:256/256/first|p:fp32|words:whitespace|v:1",
    "risk": "risk|l:approve,reject|p:fp32|v:1",
    "dialogue": "dlg|f:22c0|t:3|v:1",
    "dialogue_cost": "dlg|cost:31ab|f:22c0|t:3|v:1",
}
RULES: list[dict[str, Any]] = [
    {"metric": "perplexity/long_tail", "max": 60},
    {"metric": "perplexity/domain", "change": {"max_relative_increase": 0.02}},
    {"metric": "risk/high_risk_recall", "min": 0.9},
    {"metric": "risk/false_reject_rate", "max": 0.1},
    {"metric": "dialogue/pass_hat_k", "k": 3, "min": 0.8},
    {"metric": "dialogue/pass_hat_k", "k": 3, "slice": "multi_turn", "min": 0.8},
    {"metric": "dialogue/consistency", "min": 0.9},
    {"metric": "latency/turn_overhead", "within_ms": 15, "share": 0.99, "severity": "warn"},
]
# metric, k, slice, value, low, high, n, clusters
_VALUES: list[tuple[str, int | None, str | None, float, float, float, int, int]] = [
    ("perplexity/token", None, None, 3.931, 3.712, 4.163, 9120, 399),
    ("perplexity/head", None, None, 2.204, 2.131, 2.288, 7220, 399),
    ("perplexity/middle", None, None, 9.87, 9.02, 10.8, 1330, 371),
    ("perplexity/long_tail", None, None, 41.2, 35.9, 47.9, 402, 228),
    ("perplexity/oov", None, None, 118.0, 84.0, 166.0, 88, 61),
    ("perplexity/domain", None, None, 4.61, 4.22, 5.05, 80, 70),
    ("perplexity/without_oov", None, None, 3.77, 3.58, 3.98, 9032, 399),
    ("bits_per_byte", None, None, 0.598, 0.574, 0.622, 30111, 399),
    ("rate/oov", None, None, 0.0096, 0.0078, 0.0119, 9120, 399),
    ("logits/entropy", None, None, 1.21, 1.17, 1.26, 9120, 399),
    ("logits/margin", None, None, 1.94, 1.87, 2.02, 9120, 399),
    ("logits/top_k_accuracy", None, None, 0.914, 0.905, 0.922, 9120, 399),
    ("risk/high_risk_recall", None, None, 0.957, 0.921, 0.981, 210, 210),
    ("risk/false_reject_rate", None, None, 0.064, 0.048, 0.083, 640, 640),
    ("risk/auc", None, None, 0.981, 0.972, 0.989, 850, 850),
    ("dialogue/pass_hat_k", 1, None, 0.86, 0.79, 0.91, 60, 60),
    ("dialogue/pass_hat_k", 3, None, 0.80, 0.71, 0.88, 60, 60),
    ("dialogue/pass_hat_k", 3, "multi_turn", 0.55, 0.40, 0.69, 40, 40),
    ("dialogue/consistency", None, None, 0.71, 0.63, 0.78, 240, 60),
    ("dialogue/satisfaction", None, None, 3.91, 3.72, 4.08, 190, 60),
    ("dialogue/resolution_turns", None, None, 4.2, 3.9, 4.6, 60, 60),
    ("latency/first_token", None, None, 4.1, 3.9, 4.4, 190, 60),
    ("latency/turn_overhead", None, None, 2.2, 2.0, 2.5, 190, 60),
    ("cache/reuse_ratio", None, None, 0.91, 0.885, 0.93, 11200, 60),
]


def interval(
    low: float | None, high: float | None, sides: Literal[1, 2] = 2, method: str = "cluster-bootstrap"
) -> Interval:
    """An interval at 95 %."""
    return Interval(low, high, 0.95, sides, method, 2000, 2024)


def metric(
    name: str,
    value: float | None,
    low: float | None = None,
    high: float | None = None,
    *,
    k: int | None = None,
    slice: str | None = None,
    n: int = 1000,
    clusters: int = 100,
    **fields: Any,
) -> MetricResult:
    """A metric with bounds; narrower ones than the interval need not be told apart here."""
    spec = spec_for(name)
    known = low is not None or high is not None
    base: dict[str, Any] = {
        "reason": None if value is not None else "not measured",
        "unit": spec.unit,
        "direction": spec.direction,
        "signature": SIGNATURES[spec.family],
        "interval": interval(low, high) if known else None,
        "bounds": interval(low, high, 1) if known else None,
        "action": spec.action,
    }
    return MetricResult(
        name=name, value=value, k=k, slice=slice, n=n, clusters=clusters, **{**base, **fields}
    )


def metrics(scale: float = 1.0) -> list[MetricResult]:
    """All metrics of one model; `scale` makes another model of it."""
    found = []
    for name, k, slice, value, low, high, n, clusters in _VALUES:
        factor = scale if spec_for(name).unit in ("ratio", "bits/byte", "ms") else 1.0
        details: dict[str, Any] = {}
        if name.startswith("latency/"):
            share = interval(0.972, 1.0, 1, "exact-binomial-effective-n")
            details = {
                "p95": value * factor * 2.4,
                "p99": value * factor * 3.9,
                "within": [{"ms": 15.0, "share": 0.995, "n": n, "bounds": share.__dict__ | {}}],
            }
        found.append(
            metric(
                name,
                value * factor,
                low * factor,
                high * factor,
                k=k,
                slice=slice,
                n=n,
                clusters=clusters,
                details=details,
            )
        )
    return found


def results(items: Sequence[MetricResult], evidence: Evidence, digest: str = CANDIDATE) -> Results:
    """results.json of one model."""
    return build_results(
        evidence, items, run_id="20261129-120000-demo", plan_sha256=sha256_text("plan"), model_digest=digest
    )


def compared(
    name: str,
    value: float | None,
    low: float | None,
    high: float | None,
    *,
    absolute: bool = False,
    **fields: Any,
) -> ComparedMetric:
    """One compared metric whose relative (or absolute) change is given."""
    spec = spec_for(name)
    known = low is not None or high is not None
    given = Difference(
        value,
        None if value is not None else "not compared",
        interval(low, high, 2, "paired-cluster-bootstrap") if known else None,
        interval(low, high, 1, "paired-cluster-bootstrap") if known else None,
    )
    base: dict[str, Any] = {
        "k": None,
        "slice": None,
        "unit": spec.unit,
        "direction": spec.direction,
        "candidate": 1.0 + (value or 0.0),
        "baseline": 1.0,
        "absolute": given,
        "relative": Difference(None, "shown as a difference") if absolute else given,
        "n": 1000,
        "clusters": 100,
        "coverage": 1.0,
        "signature": SIGNATURES[spec.family],
        "baseline_signature": SIGNATURES[spec.family],
        "action": spec.action,
    }
    return ComparedMetric(name=name, **{**base, **fields})


def comparison(items: Sequence[ComparedMetric], baseline: Results, **fields: Any) -> Comparison:
    """comparison.json."""
    pairs = {kind: PairCounts(100, 100, 100, 100) for kind in ("text", "risk", "turn")}
    base: dict[str, Any] = {
        "run_id": baseline.run_id,
        "plan_sha256": baseline.plan_sha256,
        "model_digest": CANDIDATE,
        "baseline_model_digest": BASELINE,
        "baseline_complete": True,
        "baseline_counts": baseline.counts,
        "pairs": pairs,
        "metrics": tuple(items),
    }
    return Comparison(**{**base, **fields})


def policy(rules: Sequence[dict[str, Any]] = RULES, **fields: Any) -> Policy:
    """A policy of some rules."""
    return Policy.model_validate({"rules": list(rules), **fields})


def text(
    sample_id: str, content: str, worst: list[tuple[int, int, float]] | None = None, **fields: Any
) -> SampleRecord:
    """A scored text; every byte is a token."""
    size = len(content.encode("utf-8", "surrogatepass"))
    nll = fields.pop("nll", 1.5 * size)
    base: dict[str, Any] = {
        "digest": sha256_text(content),
        "cluster": sample_id,
        "status": "ok",
        "tokens": size,
        "scored": size,
        "bytes": size,
        "bytes_scored": size,
        "words": len(content.split()),
        "nll": nll,
        "classes": {"head": ClassSums(tokens=size, nll=nll, bytes=size)},
        "worst": worst or [],
        "text": content,
    }
    return SampleRecord(sample_id=sample_id, kind="text", **{**base, **fields})


def turn(
    dialogue: str,
    trial: int,
    index: int,
    *,
    said: str,
    reply: str,
    checks: Sequence[ExpectationResult],
    **fields: Any,
) -> TurnRecord:
    """A turn that went well unless a check says otherwise."""
    base: dict[str, Any] = {
        "turn_id": f"{dialogue}-{trial}-{index}",
        "dialogue_turns": 3,
        "status": "ok",
        "reason": None,
        "token_ids": [5, 9],
        "finish_reason": "END",
        "probe_distance": [],
        "locale": "zh" if "_zh_" in dialogue else "en",
        "tags": ["multi_turn", "card_lost"],
        "intent": "card_lost",
        "intent_expected": "card_lost",
        "handover": False,
        "handover_expected": False,
        "satisfaction": 4.2,
        "prompt_tokens": 120,
        "reused_tokens": 96,
        "generated_tokens": 14,
        "first_token_ns": 4_100_000,
        "turn_overhead_ns": 900_000,
        "total_ns": 31_000_000,
    }
    return TurnRecord(
        dialogue_id=dialogue,
        trial=trial,
        turn_index=index,
        user_text=said,
        text=reply,
        expectations=list(checks),
        **{**base, **fields},
    )


def dialogue(name: str, trial: int, recalls: bool) -> list[TurnRecord]:
    """Three turns; the last asks for a name given in the first."""
    held = ExpectationResult("contains", "Maria", "…", True)
    last = ExpectationResult("recalls", "Maria", "…", recalls)
    answer = "Your card is blocked, Maria." if recalls else "Your card is blocked, David."
    return [
        turn(
            name,
            trial,
            0,
            said="Hello, this is Maria, account 6471.",
            reply="Hello Maria, how can I help?",
            checks=[held],
        ),
        turn(
            name,
            trial,
            1,
            said="I have lost my card.",
            reply="I have blocked the card of account 6471.",
            checks=[held],
        ),
        turn(name, trial, 2, said="Whose card is it?", reply=answer, checks=[last], probe_distance=[2]),
    ]


def evidence(regressed: bool) -> Evidence:
    """Texts in two languages and dialogues of which a regressed model loses some."""
    lost = "Please block the card of my daughter Zdeňka at once"
    samples = [
        text("fees_en_001", "An overdraft costs nine percent a year.", [(13, 18, -3.1)], tags=["fees"]),
        text(
            "lost_en_002",
            lost,
            [(36, 44, -9.7), (7, 12, -5.0), (45, 47, -2.4)],
            nll=3.1 * len(lost),
            tags=["cards"],
        ),
        text("zh_003", "请问透支的年利率是多少？", [(6, 12, -8.2)], nll=2.9 * 36, tags=["zh", "fees"]),
        text("bad_004", "", status="skipped", reason="the text is empty", text=None),
    ]
    turns = []
    for number in range(20):
        for trial in range(3):
            name = f"lost_card_{'zh' if number % 5 == 4 else 'en'}_{number:03d}"
            turns += dialogue(name, trial, recalls=not (regressed and number % 3 == 0 and trial > 0))
    return Evidence(tuple(samples), tuple(turns))


EVIDENCE_ONE = Evidence((text("a", "one text"),))


def context() -> MetricContext:
    """Measurement settings."""
    ids = tuple(sorted({item.dialogue_id for item in evidence(False).turns}))
    return MetricContext(
        confidence=0.95,
        seed=2024,
        signatures=SIGNATURES,
        risk=RiskSetup(("approve", "reject"), "reject", 0.95),
        dialogues=DialogueSetup(
            dialogue_ids=ids,
            trials=3,
            varies=True,
            population="sample",
            turns=dict.fromkeys(ids, 3),
            satisfaction_error=0.41,
            satisfaction_data="generated dialogues",
        ),
    )


def plan() -> dict[str, Any]:
    """plan.json, as much of it as reports read."""
    spec = {"family": "llama", "parameters": 381600, "attention_window": None, "max_length": 256}
    return {
        "schema": PLAN_SCHEMA,
        "run_id": "20261129-120000-demo",
        "created": "2026-11-29T12:00:00Z",
        "scenario": {"name": "banking_support", "output": {"formats": ["html", "markdown", "junit"]}},
        "candidate": {
            "name": "banking-regressed",
            "model_digest": CANDIDATE,
            "model": {**spec, "attention_window": 24},
        },
        "baseline": {
            "name": "banking-released",
            "model_digest": BASELINE,
            "model": spec,
            "training": {"steps": 500},
        },
        "first_release": False,
        "look": 1,
        "policy": None,
        "measurement": {side: context_to_plan(context()) for side in ("candidate", "baseline")},
        "data": {"texts": {"sha256": sha256_text("texts")}},
        "environment": {
            "versions": {"python": "3.11.9", "mindspore": "2.10.0"},
            "machine": {"system": "Linux", "cpus": 2},
        },
    }


def source(
    *, with_baseline: bool = True, rules: Sequence[dict[str, Any]] = RULES, first_release: bool = False
) -> ReportSource:
    """The whole run."""
    ours, theirs = evidence(True), evidence(False)
    candidate_results = results(metrics(), ours)
    baseline_results = results(metrics(1.05), theirs, BASELINE)
    changes = [
        compared(
            item.name, -0.031, -0.05, -0.012, k=item.k, slice=item.slice, n=item.n, clusters=item.clusters
        )
        if item.unit in ("ratio", "bits/byte", "ms")
        else compared(item.name, -0.11, -0.16, 0.01, absolute=True, k=item.k, slice=item.slice)
        for item in candidate_results.metrics
    ]
    pairs = comparison(changes, baseline_results)
    verdict = judge(
        candidate_results, pairs if with_baseline else None, policy(rules), first_release=first_release
    )
    made = plan() if with_baseline else {**plan(), "baseline": None}
    return ReportSource(
        plan=made,
        context=context(),
        results=candidate_results,
        candidate=ours,
        verdict=verdict,
        baseline_results=baseline_results if with_baseline else None,
        comparison=pairs if with_baseline else None,
        baseline=theirs if with_baseline else None,
    )


def random_evidence(seed: int, *, texts: int = 60, dialogues: int = 20, worse: float = 0.0) -> Evidence:
    """Evidence from which every number can be computed: texts of varying difficulty, dialogues, decisions.

    The same seed gives the same texts; `worse` raises every loss and lets that share of the dialogues fail.
    """
    random = Random(seed)
    samples = []
    for number in range(texts):
        words = random.randint(5, 12)
        content = " ".join(
            random.choice(("please", "block", "my", "card", "fee", "rate")) for _ in range(words)
        )
        size = len(content)
        head, tail = size - 5, 5
        loss = random.uniform(0.5, 1.5) + worse
        classes = {
            "head": ClassSums(tokens=head, nll=round(loss * head), top1=head // 2, bytes=head),
            "long_tail": ClassSums(tokens=tail, nll=round(3 * loss * tail), top1=1, bytes=tail),
        }
        nll = float(sum(sums.nll for sums in classes.values()))
        samples.append(text(f"t{number:03d}", content, [(0, 5, -4.0)], nll=nll, classes=classes))
    for number in range(texts):
        target = "reject" if number % 3 == 0 else "approve"
        sure = random.uniform(-1.0, 4.0) - worse
        logprobs = [-3.0, -3.0 + sure] if target == "reject" else [-3.0 + sure, -3.0]
        samples.append(
            replace(
                text(f"r{number:03d}", f"application {number}"),
                kind="risk",
                target=target,
                label_logprobs=logprobs,
                part="calibration" if number % 4 == 0 else "judged",
                text=None,
            )
        )
    turns = []
    for number in range(dialogues):
        fails = random.random() < worse
        for trial in range(3):
            turns += dialogue(f"lost_card_en_{number:03d}", trial, recalls=not fails)
    return Evidence(tuple(samples), tuple(turns))


def context_for(evidence: Evidence) -> MetricContext:
    """Measurement settings for other dialogues than `context` names."""
    base = context()
    assert base.dialogues is not None
    ids = tuple(sorted({item.dialogue_id for item in evidence.turns}))
    setup = replace(base.dialogues, dialogue_ids=ids, turns=dict.fromkeys(ids, 3))
    return replace(base, dialogues=setup if ids else None, k_values=(1, 3))


def write_run(
    path: Path,
    rules: Sequence[dict[str, Any]],
    candidate: Evidence,
    baseline: Evidence | None,
    plan_fields: dict[str, Any] | None = None,
) -> RunFolder:
    """A finished run folder: measured, compared, sealed and judged as the real one is; `plan_fields` are set in its plan."""
    folder = RunFolder(path)
    settings = context_to_plan(context_for(candidate))
    made = {
        **plan(),
        "policy": resolve_policy(policy(rules)),
        "measurement": {"candidate": settings, "baseline": settings},
        **(plan_fields or {}),
    }
    if baseline is None:
        made["baseline"] = None
    write_json_atomic(folder.plan, made)
    write_evidence(folder, "candidate", candidate)
    if baseline is not None:
        write_evidence(folder, "baseline", baseline)
    derived = derive(folder)
    write_bytes_atomic(folder.results, derived.results.to_bytes())
    if derived.baseline_results is not None and derived.comparison is not None:
        write_bytes_atomic(folder.baseline_results, derived.baseline_results.to_bytes())
        write_bytes_atomic(folder.comparison, derived.comparison.to_bytes())
    write_seal(path)
    store_verdict(folder, judge_run(folder))
    return folder
