"""Rank the causes of a spike by the signs that are there; too few of them and the cause is unknown."""

import math
from dataclasses import dataclass

from trainer.diagnosis.rulebook import make_finding
from trainer.diagnosis.spikes.causebook import UNKNOWN, CauseBook, cause_book
from trainer.diagnosis.spikes.detect import Spike
from trainer.diagnosis.spikes.signals import Context, Norms, Sign, find_signs, measure_norms, shown
from trainer.findings import Evidence, Finding, Rival

_NORM_ROSE = 4.0


@dataclass(frozen=True)
class Candidate:
    """A cause with the sum of its signs' weights, and what they say."""

    cause: str
    strength: float
    because: tuple[str, ...]


def explain(spike: Spike, context: Context) -> Finding:
    """The finding of a spike: its strongest cause if that is strong enough, else `unknown_cause`."""
    book = cause_book()
    ranked = _rank(find_signs(spike, context, book.windows), book)
    chosen = ranked[0] if ranked and ranked[0].strength >= book.accepted else None
    rule = chosen.cause if chosen else UNKNOWN
    norms = measure_norms(spike, book.windows)
    evidence = [*_facts(spike), *_moved(spike, norms)]
    if chosen:
        evidence.append(Evidence("strength", round(chosen.strength, 2)))
        evidence += [Evidence("sign", text) for text in chosen.because]
    others = [candidate for candidate in ranked if candidate is not chosen]
    rivals = [
        Rival(candidate.cause, f"{'; '.join(candidate.because)} (strength {candidate.strength:.2f})")
        for candidate in others
    ]
    rivals += _not_measured(spike, norms, {candidate.cause for candidate in ranked})
    text = book.rules[rule]
    severity = "error" if spike.recovered is None else text.severity
    return make_finding(
        rule,
        text,
        evidence,
        severity=severity,
        rivals=rivals,
        values={
            "start": spike.start.step,
            "level": shown(spike.level.median),
            "peak": shown(spike.peak.loss),
        },
    )


def _rank(signs: list[Sign], book: CauseBook) -> list[Candidate]:
    there = {sign.name: sign for sign in signs}
    candidates = []
    for cause, weights in book.causes.items():
        found = [name for name in weights if name in there]
        # That a spike doesn't recover says nothing without another sign.
        if not found or found == ["never_recovered"]:
            continue
        because = tuple(book.signs[name].format(**there[name].values) for name in found)
        candidates.append(Candidate(cause, sum(weights[name] for name in found), because))
    return sorted(candidates, key=lambda candidate: -candidate.strength)


def _facts(spike: Spike) -> list[Evidence]:
    return [
        Evidence("start", spike.start.step, where=spike.start.where),
        Evidence("peak_loss", _number(spike.peak.loss), "nats", spike.peak.where),
        Evidence("peak_step", spike.peak.step),
        Evidence("level", round(spike.level.median, 6), "nats"),
        Evidence("sigma", round(spike.level.sigma, 6), "nats"),
        Evidence("records_in_level", spike.level.records),
        Evidence("last_step", spike.last.step),
        Evidence("recovered_step", spike.recovered.step if spike.recovered else None),
        Evidence("recovery_steps", spike.recovery_steps, "steps"),
        Evidence("attempt", spike.stretch.attempt),
    ]


def _moved(spike: Spike, norms: Norms) -> list[Evidence]:
    inside = [step for step in spike.stretch.steps if spike.start.step <= step.step <= spike.last.step]
    scales = [step.loss_scale for step in inside if step.loss_scale is not None]
    skips = [step.skipped for step in inside if step.skipped is not None]
    rose = (
        norms.before is not None and norms.highest is not None and norms.highest > _NORM_ROSE * norms.before
    )
    if norms.before is None or norms.highest is None:
        signature = "the gradient norm isn't known"
    elif rose:
        steps = "step" if norms.lead_steps == 1 else "steps"
        before = f"{norms.lead_steps} {steps} before the loss" if norms.lead_steps else "with the loss"
        overflow = "no overflow" if not any(skips) else "with overflows"
        signature = f"gradient explosion: the norm rose {before}, {overflow}"
    elif norms.highest > norms.before:
        signature = (
            f"the loss rose, the gradient norm to {norms.highest / norms.before:.1f} times its level only"
        )
    else:
        signature = "the loss rose, the gradient norm didn't"
    return [
        Evidence("signature", signature),
        Evidence("grad_norm_before", _number(norms.before)),
        Evidence("grad_norm_highest", _number(norms.highest)),
        Evidence("grad_norm_lead", norms.lead_steps, "steps"),
        Evidence("stale_grad_norms", norms.stale),
        Evidence("loss_scale_first", _number(scales[0] if scales else None)),
        Evidence("loss_scale_last", _number(scales[-1] if scales else None)),
        Evidence("skipped_steps", sum(skips) if skips else None),
        Evidence("learning_rate", _number(spike.start.learning_rate)),
    ]


def _number(value: float | None) -> float | str | None:
    """JSON has no infinities: those become texts."""
    return value if value is None or math.isfinite(value) else str(value)


def _not_measured(spike: Spike, norms: Norms, named: set[str]) -> list[Rival]:
    """What can't be ruled out because the log doesn't say."""
    around = [*spike.stretch.before, *spike.stretch.steps]
    rivals = []
    if "scale_overflow" not in named and all(step.loss_scale is None for step in around):
        rivals.append(
            Rival("scale_overflow", "the log has no loss scale: none in bfloat16, not measured in float16")
        )
    if "bad_data" not in named and all(step.sample_ids is None for step in around):
        rivals.append(Rival("bad_data", "the log doesn't name the samples of a step"))
    if norms.before is None:
        rivals.append(Rival("gradient_explosion", "no gradient norm was measured"))
    return rivals
