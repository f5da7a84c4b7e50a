"""How often the gate is right: simulated runs at the sample size that `evalkit power` names, judged by the real judge.

    python -m benchmarks.gate_power [--runs 400] [--pilots 8] [--seed 1] [--out FILE.json]

Five rules: a ratio (perplexity), a rate, a paired change of either, and pass_hat_k. For each rule a margin is set; the true
value lies at its reference (an A/A run: both models are drawn from one distribution), at twice the margin, and exactly at
the threshold. Every run has samples of its own. Where `evalkit power` needs a pilot, several are drawn, each names its own
size, and each is followed by an equal share of the runs. With two looks a run is judged at half the size first, and, where
that is undecided, again at the whole size. Exits 1 if a figure misses what is demanded.
"""

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.gate.comparison import ComparedMetric, Comparison, Difference
from evalkit.gate.judge import judge
from evalkit.gate.power import Pilot, Units, power_of_rules
from evalkit.metrics.estimators import Estimator, FloatArray, RatioEstimator, ShareEstimator
from evalkit.metrics.registry import spec_for
from evalkit.metrics.result import MetricResult
from evalkit.runs.evidence import Evidence
from evalkit.runs.results_io import build_results
from evalkit.scenario.schema import Policy, Rule
from evalkit.statistics.intervals import Question, uncertainties
from evalkit.statistics.paired import ChangeKind, paired_changes
from evalkit.statistics.passk import pass_hat_k

# Truths, in margins away from the reference: where the truth is fine, where it isn't, and the threshold itself.
TRUTHS = {"no change": 0.0, "twice the margin": 2.0, "at the threshold": 1.0}
PILOT_CLUSTERS = 200
CONFIDENCE = 0.95
SEED = 2024  # of the bootstrap, as a scenario has one

Sample = tuple[Estimator, Estimator | None]
Draw = Callable[[np.random.Generator, int, float], tuple[FloatArray, ...]]


@dataclass(frozen=True)
class Case:
    """One rule and a world in which it is judged.

    Attributes:
        rule: with its margin.
        draw: arrays of shape (clusters,) or more of one sample, given a generator, its size and the margins away.
        build: the estimators of the first so many clusters of a sample.
        units: what `evalkit power` is told of the scenario.
    """

    name: str
    rule: dict[str, Any]
    draw: Draw
    build: Callable[[tuple[FloatArray, ...]], Sample]
    units: Units

    @property
    def paired(self) -> bool:
        """Whether the rule is one of a change."""
        return "change" in self.rule


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"c{number:06d}" for number in range(count))


def _perplexity(losses: FloatArray, tokens: FloatArray) -> RatioEstimator:
    return RatioEstimator(_names(len(tokens)), losses * tokens, tokens, "exp")


def _share(outcomes: FloatArray) -> ShareEstimator:
    return ShareEstimator(_names(len(outcomes)), outcomes, np.ones_like(outcomes))


def _texts(random: np.random.Generator, size: int, margins: float, margin: float) -> tuple[FloatArray, ...]:
    """Losses of candidate and baseline and the tokens: difficulty is shared, the rest is each model's own."""
    tokens = np.maximum(5, np.round(random.lognormal(4.0, 0.5, size)))
    difficulty = random.normal(3.0, 0.25, size)
    ours, theirs = random.normal(0.0, 0.06, (2, size))
    return difficulty + ours + math.log1p(margins * margin), difficulty + theirs, tokens


def _settled(random: np.random.Generator, size: int, margins: float) -> tuple[FloatArray, ...]:
    """Outcomes of both models; in four dialogues of five they share their fate."""
    shared, alone = random.random(size) < 0.8, random.random((3, size))
    theirs = np.where(shared, alone[0], alone[1]) < 0.8
    ours = np.where(shared, alone[0], alone[2]) < 0.8 - 0.08 * margins
    return ours.astype(np.float64), theirs.astype(np.float64)


def _trials(random: np.random.Generator, size: int, margins: float) -> tuple[FloatArray, ...]:
    """pass_hat_3 of five trials each, in a world of reliable (0.995) and unreliable (0.4) dialogues whose mean is the truth."""
    good, bad = 0.995**3, 0.4**3
    share = (0.9 - 0.1 * margins - bad) / (good - bad)
    chance = np.where(random.random(size) < share, 0.995, 0.4)
    passed = random.binomial(5, chance)
    return (np.array([pass_hat_k(count, 5, 3) for count in passed.tolist()], dtype=np.float64),)


CASES = (
    Case(
        "ratio",
        {"metric": "perplexity/token", "max": math.exp(3.0) * 1.05},
        lambda random, size, margins: _texts(random, size, margins, 0.05),
        lambda sample: (_perplexity(sample[0], sample[2]), None),
        Units(PILOT_CLUSTERS, "clusters of texts"),
    ),
    Case(
        "rate",
        {"metric": "dialogue/handover_recall", "min": 0.9},
        lambda random, size, margins: ((random.random(size) < 0.95 - 0.05 * margins).astype(np.float64),),
        lambda sample: (_share(sample[0]), None),
        Units(PILOT_CLUSTERS, "dialogues", outcomes=True),
    ),
    Case(
        "paired change of a ratio",
        {"metric": "perplexity/token", "change": {"max_relative_increase": 0.02}},
        lambda random, size, margins: _texts(random, size, margins, 0.02),
        lambda sample: (_perplexity(sample[0], sample[2]), _perplexity(sample[1], sample[2])),
        Units(PILOT_CLUSTERS, "clusters of texts"),
    ),
    Case(
        "paired change of a rate",
        {"metric": "dialogue/resolution_rate", "change": {"max_decrease": 0.08}},
        _settled,
        lambda sample: (_share(sample[0]), _share(sample[1])),
        Units(PILOT_CLUSTERS, "dialogues", outcomes=True),
    ),
    Case(
        "pass_hat_k",
        {"metric": "dialogue/pass_hat_k", "k": 3, "min": 0.8},
        _trials,
        lambda sample: (_share(sample[0]), None),
        Units(PILOT_CLUSTERS, "dialogues", outcomes=True),
    ),
)


@dataclass(frozen=True)
class Measured:
    """What the judge gets of one run."""

    metrics: tuple[MetricResult, ...]
    comparison: Comparison | None


def measured(case: Case, samples: Sequence[Sample]) -> list[Measured]:
    """Runs of equal size, measured together: they share the weights of the bootstrap, as equal seeds do."""
    rule = Rule.model_validate(case.rule)
    spec = spec_for(rule.metric)
    key: dict[str, Any] = {"name": rule.metric, "k": rule.k, "slice": None, "unit": spec.unit}
    key["direction"] = spec.direction
    if not case.paired:
        questions = [Question(ours, spec.method, spec.support, spec.log_scale) for ours, _ in samples]
        answers = uncertainties(questions, confidence=CONFIDENCE, seed=SEED)
        return [
            Measured(
                (
                    MetricResult(
                        **key,
                        value=ours.value,
                        reason=None,
                        n=ours.n,
                        clusters=len(ours.clusters),
                        signature="",
                        coverage=1.0,
                        interval=answer.interval,
                        bounds=answer.bounds,
                        action=None,
                        details={"interval_reason": answer.reason},
                    ),
                ),
                None,
            )
            for (ours, _), answer in zip(samples, answers, strict=True)
        ]
    kind: ChangeKind = "relative" if "relative" in next(iter(case.rule["change"])) else "absolute"
    asked = [(ours, theirs, kind) for ours, theirs in samples if theirs is not None]
    empty = build_results(Evidence(), (), run_id="", plan_sha256="", model_digest="b")
    found = []
    for change in paired_changes(asked, CONFIDENCE, SEED):
        difference = Difference(
            change.value, change.reason, change.interval, change.bounds, change.interval_reason
        )
        other = Difference(None, "not asked")
        metric = ComparedMetric(
            **key,
            candidate=change.candidate,
            baseline=change.baseline,
            absolute=difference if kind == "absolute" else other,
            relative=difference if kind == "relative" else other,
            n=change.n,
            clusters=change.clusters,
            coverage=1.0,
            signature="",
            baseline_signature="",
        )
        found.append(Measured((), Comparison("", "", "a", "b", True, empty.counts, {}, (metric,))))
    return found


def verdicts(case: Case, runs: Sequence[Measured]) -> list[str]:
    """What the judge says of each run."""
    policy = Policy.model_validate({"confidence": CONFIDENCE, "rules": [case.rule]})
    nothing = build_results(Evidence(), (), run_id="", plan_sha256="", model_digest="a")
    return [judge(replace(nothing, metrics=run.metrics), run.comparison, policy).verdict for run in runs]


def named_size(case: Case, random: np.random.Generator) -> int:
    """What `evalkit power` names, after a pilot at the reference where it needs one."""
    policy = Policy.model_validate({"confidence": CONFIDENCE, "rules": [case.rule]})
    (alone,) = power_of_rules(policy, lambda _: case.units, None)
    if alone.needs_n is not None:
        return alone.needs_n
    size = PILOT_CLUSTERS
    while True:
        (run,) = measured(case, [case.build(case.draw(random, size, 0.0))])
        results = build_results(Evidence(), run.metrics, run_id="", plan_sha256="", model_digest="a")
        (found,) = power_of_rules(policy, lambda _: case.units, Pilot("the pilot", results, run.comparison))
        if found.needs_n is not None:
            return found.needs_n
        # As its advice is: "measure a larger one".
        size *= 2


def simulate(case: Case, runs: int, pilots: int, seed: int) -> dict[str, Any]:
    """Sizes and shares of verdicts of one rule under every truth, with one look and with two."""
    random = np.random.default_rng(seed)
    sizes = [named_size(case, random) for _ in range(pilots)]
    found: dict[str, Any] = {"rule": case.rule, "sizes": sorted(sizes), "runs": runs // pilots * pilots}
    for truth, margins in TRUTHS.items():
        one: Counter[str] = Counter()
        two: Counter[str] = Counter()
        for size in sizes:
            drawn = [case.draw(random, size, margins) for _ in range(runs // pilots)]
            last = verdicts(case, measured(case, [case.build(sample) for sample in drawn]))
            half = [tuple(part[: math.ceil(size / 2)] for part in sample) for sample in drawn]
            first = verdicts(case, measured(case, [case.build(sample) for sample in half]))
            one.update(last)
            two.update(
                early if early != "INCONCLUSIVE" else late for early, late in zip(first, last, strict=True)
            )
        found[truth] = {"one look": _rates(one), "two looks": _rates(two)}
    return found


def _rates(counted: Counter[str]) -> dict[str, float]:
    return {name: counted[name] / counted.total() for name in ("PASS", "FAIL", "INCONCLUSIVE")}


def shortfalls(found: dict[str, Any]) -> list[str]:
    """Where the figures of one rule miss what is demanded of the gate."""
    missed = []
    for truth, right, wrong in (("no change", "PASS", "FAIL"), ("twice the margin", "FAIL", "PASS")):
        for looks, rates in found[truth].items():
            if not rates[right] >= 0.9:
                missed.append(f"{truth}, {looks}: {right} {rates[right]:.1%}, at least 90 % is demanded")
            if not rates[wrong] <= 0.05:
                missed.append(f"{truth}, {looks}: {wrong} {rates[wrong]:.1%}, at most 5 % is allowed")
    return missed


def table(found: dict[str, dict[str, Any]]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| rule | samples | truth | looks | PASS | FAIL | INCONCLUSIVE |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, case in found.items():
        low, high = case["sizes"][0], case["sizes"][-1]
        size = str(low) if low == high else f"{low} to {high}"
        for truth in TRUTHS:
            for looks, rates in case[truth].items():
                shares = " | ".join(f"{100 * rate:.1f} %" for rate in rates.values())
                lines.append(f"| {name} | {size} | {truth} | {looks.split()[0]} | {shares} |")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=400, help="of each rule and truth")
    parser.add_argument("--pilots", type=int, default=8, help="that share the runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    begin = time.process_time()
    found = {
        case.name: simulate(case, options.runs, options.pilots, options.seed + number)
        for number, case in enumerate(CASES)
    }
    missed = {name: missing for name, case in found.items() if (missing := shortfalls(case))}
    result = json.dumps(
        {"seed": options.seed, "cases": found, "missed": missed, "cpu_s": round(time.process_time() - begin)},
        indent=2,
    )
    if options.out is not None:
        options.out.write_text(result + "\n", encoding="utf-8")
    sys.stderr.write(table(found) + "\n")
    sys.stdout.write(result + "\n")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
