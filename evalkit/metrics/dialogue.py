"""Metrics of the multi-turn replay: reliability, consistency, hand-over, satisfaction, resolution, cache.

Clusters are dialogues: trials and turns of one dialogue aren't independent. Trials that are copies of each
other count once; trials that were lost around the model count as missing, shown as coverage.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from evalkit.metrics.context import MetricContext
from evalkit.metrics.dialogue_checks import blame, consistency, expectation_rates, repeatability
from evalkit.metrics.dialogue_cost import cost_parts, late_turns, settled
from evalkit.metrics.dialogue_view import View, absent, mean, share, shares
from evalkit.metrics.estimators import NamedEstimator
from evalkit.metrics.trials import Trial, group_trials
from evalkit.runs.evidence import Evidence
from evalkit.statistics.passk import pass_hat_k


def estimators(evidence: Evidence, context: MetricContext) -> list[NamedEstimator]:
    """Every dialogue metric, over all dialogues and over each slice that some dialogue belongs to.

    Raises:
        InputError: the evidence holds two records of one turn.
    """
    setup = context.dialogues
    if setup is None:
        return []
    found: list[NamedEstimator] = []
    for name in dialogue_slices(context):
        view = View(setup, group_trials(evidence.turns, setup, name), name)
        found += [_pass_hat_k(view, k) for k in context.k_values]
        found += [
            *consistency(view),
            *expectation_rates(view),
            repeatability(view),
            *_handover(view),
            _satisfaction(view),
            *_resolution(view),
            *_cost(view),
            _reuse(view),
        ]
    return found


def dialogue_slices(context: MetricContext) -> list[str | None]:
    """All dialogues (None), then the asked slices that some dialogue belongs to."""
    tags = {tag for own in context.dialogues.tags.values() for tag in own} if context.dialogues else set()
    return [None, *(name for name in context.slices if name in tags)]


def _pass_hat_k(view: View, k: int) -> NamedEstimator:
    counts, planned = view.trials.counts(), view.trials.planned
    outcomes = {key: pass_hat_k(passed, done, k) for key, (passed, done) in counts.items()}
    defined = {key: value for key, value in outcomes.items() if value is not None}
    given = sum(min(counts[key][1], planned[key]) for key in defined)
    total = sum(planned.values())
    copies = view.trials.copies
    details = {
        "trials_passed": sum(passed for passed, _ in counts.values()),
        "trials_with_result": sum(done for _, done in counts.values()),
        "trials_planned": total,
        "dialogues_of_copies": len(copies),
        "blame": blame(view.trials),
        "flaky": sorted(key for key in counts if _is_flaky(view.trials.by_dialogue[key])),
    }
    reason = None
    if not defined:
        reason = f"no dialogue has {k} independent trials with a result"
        if k > 1 and len(copies) == len(counts):
            reason = (
                f"nothing varies between trials, so they count as one; k = {k} needs a source of variation"
            )
    return NamedEstimator(
        "dialogue/pass_hat_k",
        k=k,
        slice=view.slice,
        estimator=shares(((key, value, 1.0) for key, value in defined.items())) if defined else None,
        reason=reason,
        coverage=given / total if total else None,
        details=details,
        method=view.method,
    )


def _is_flaky(trials: Sequence[Trial]) -> bool:
    return {"passed", "failed"} <= {trial.outcome for trial in trials}


def _handover(view: View) -> list[NamedEstimator]:
    """Hand-over to a human, scored a dialogue: was it needed, did it come, in which turn.

    Late turns are counted from the first turn that needs it; a hand-over that never came is late by all turns
    left.
    """
    decided, needed, late, rate = [], [], [], []
    for trial in view.scored:
        turns = trial.turns
        key = trial.dialogue_id
        done = next((turn for turn in turns if turn.handover), None)
        right = done is not None and bool(done.handover_expected)
        rate.append((key, float(done is not None), 1.0))
        if done is not None:
            decided.append((key, float(right), 1.0))
        too_late = late_turns(trial)
        if too_late is not None:
            needed.append((key, float(right), 1.0))
            late.append((key, float(too_late), 1.0))
    if not any(turn.handover is not None for trial in view.scored for turn in trial.turns):
        no_flow = "the flow decides no hand-over"
        names = ("precision", "recall", "rate")
        without = [*(f"dialogue/handover_{name}" for name in names), "dialogue/late_turns"]
        return [absent(view, name, no_flow) for name in without]
    return [
        share(view, "dialogue/handover_precision", decided, "no dialogue was handed over"),
        share(view, "dialogue/handover_recall", needed, "no dialogue needs a hand-over"),
        share(view, "dialogue/handover_rate", rate, "no trial gave a result"),
        mean(view, "dialogue/late_turns", late, "no dialogue needs a hand-over"),
    ]


def _satisfaction(view: View) -> NamedEstimator:
    """Mean predicted satisfaction of the answered turns.

    The predictor errs, and not independently from turn to turn: its mean absolute error on held-out data is
    added to both sides of the interval.
    """
    units = [
        (trial.dialogue_id, turn.satisfaction, 1.0)
        for trial in view.scored
        for turn in trial.turns
        if turn.satisfaction is not None
    ]
    error = view.setup.satisfaction_error
    details = {"predictor_error": error, "predictor_data": view.setup.satisfaction_data}
    return mean(
        view, "dialogue/satisfaction", units, "the flow predicts no satisfaction", details, widen=error or 0.0
    )


def _resolution(view: View) -> list[NamedEstimator]:
    """Matters settled without a human, see `evalkit.metrics.dialogue_cost.settled`.

    Dialogues that need a hand-over aren't the model's to settle and stay out. Turns are counted over settled
    ones.
    """
    rate, turns = [], []
    for trial in view.scored:
        if any(turn.handover_expected for turn in trial.turns):
            continue
        done = settled(trial)
        rate.append((trial.dialogue_id, float(done), 1.0))
        if done:
            turns.append((trial.dialogue_id, float(trial.turns[-1].dialogue_turns), 1.0))
    details = {"unresolved": len(rate) - len(turns)}
    return [
        share(view, "dialogue/resolution_rate", rate, "every dialogue needs a hand-over"),
        mean(view, "dialogue/resolution_turns", turns, "no dialogue was resolved", details),
    ]


def _cost(view: View) -> list[NamedEstimator]:
    """Mean cost of a dialogue under the declared costs, and in the details each kind's share of that mean."""
    costs = view.setup.costs
    if costs is None:
        return [
            absent(view, "dialogue/cost", "the scenario declares no costs of a dialogue (dialogues.costs)")
        ]
    parts = [(trial.dialogue_id, cost_parts(trial, costs)) for trial in view.scored]
    units = [(key, math.fsum(part.values()), 1.0) for key, part in parts]
    by_kind = {kind: math.fsum(part[kind] for _, part in parts) / max(1, len(parts)) for kind in costs}
    details = {"costs": costs, "mean_by_kind": by_kind}
    return [mean(view, "dialogue/cost", units, "no trial gave a result", details)]


def _reuse(view: View) -> NamedEstimator:
    """Prompt tokens that the engine took from its cache, over all prompt tokens, in turns after the first.

    A session's first turn has nothing to reuse and stays out. Every answered turn counts, copies included:
    the cache is a matter of the machine, not of the text. A served model may not tell what it reused: such turns are
    unknown, which isn't 0; they are counted and lower the coverage.
    """
    answered = [
        turn
        for trials in view.trials.by_dialogue.values()
        for trial in trials
        for turn in trial.turns
        if turn.turn_index > 0 and turn.total_ns is not None
    ]
    units = [
        (turn.dialogue_id, float(turn.reused_tokens), float(turn.prompt_tokens))
        for turn in answered
        if turn.prompt_tokens is not None and turn.reused_tokens is not None
    ]
    reused = sum(unit[1] for unit in units)
    prompt = sum(unit[2] for unit in units)
    unknown = len(answered) - len(units)
    reason = (
        "the engine doesn't tell what it reused"
        if unknown
        else "no dialogue has a second turn that was answered"
    )
    details: dict[str, object] = {"reused_tokens": int(reused), "prompt_tokens": int(prompt)}
    item = share(view, "cache/reuse_ratio", units if prompt else [], reason, details)
    if not unknown:
        return item
    coverage = None if item.coverage is None else item.coverage * len(units) / len(answered)
    return replace(item, coverage=coverage, details={**item.details, "turns_unknown": unknown})
