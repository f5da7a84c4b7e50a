"""Dialogues as a report shows them: failures first, both models side by side, expectations checked off."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from markupsafe import escape

from evalkit.metrics.context import DialogueSetup
from evalkit.metrics.trials import Trial, group_trials, turn_failed
from evalkit.report import numbers
from evalkit.report.source import ReportSource
from evalkit.report.text import visible
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import LedgerCheck, TurnRecord

# A report is read by people: failures matter, a few passed dialogues show what passing looks like.
MAX_FAILED = 40
MAX_PASSED = 8
# Of one dialogue and one reply: enough to judge by, and the page stays small whatever a model says.
MAX_TURNS = 30
MAX_CHARACTERS = 1500
# Of all dialogues together; the page's limit is 5 MB. The first one is shown whatever its size.
MAX_BYTES = 3_000_000
_BYTES_A_TURN = 2000

_PLURAL = {"passed": "passed", "failed": "failed", "missing": "without result"}


@dataclass(frozen=True)
class CheckView:
    """One expectation and whether it held."""

    passed: bool
    text: str


@dataclass(frozen=True)
class ReplyView:
    """What one model answered in one turn; failed marks the turn, cut counts characters left out (or is empty)."""

    text: str
    cut: str
    failed: bool
    fault: str
    checks: tuple[CheckView, ...]
    facts: tuple[str, ...]


@dataclass(frozen=True)
class TurnView:
    """One turn: the user, and the reply of each model (None where it had ended before)."""

    number: int
    user: str
    baseline_user: str
    candidate: ReplyView | None
    baseline: ReplyView | None


@dataclass(frozen=True)
class DialogueView:
    """One dialogue, shown by its most telling trial."""

    dialogue_id: str
    locale: str
    tags: tuple[str, ...]
    outcome: str
    baseline_outcome: str
    summary: str
    trial: int
    failing: str
    turns: tuple[TurnView, ...]
    turns_left_out: int


@dataclass(frozen=True)
class DialogueSection:
    """The dialogues shown, and how many of each outcome there are in all."""

    shown: tuple[DialogueView, ...]
    counts: tuple[tuple[str, int], ...]
    left_out: int
    has_baseline: bool


def predictor_notice(dialogues: DialogueSetup) -> str:
    """What the predicted satisfaction stands on."""
    data = {"generated": "generated examples, not from people's ratings", "rated": "people's ratings"}
    learnt = data.get(dialogues.satisfaction_data or "", "examples of unknown origin")
    error = "its error isn't known and isn't in the interval"
    if dialogues.satisfaction_error is not None:
        points = numbers.number(dialogues.satisfaction_error, None)
        error = f"its mean absolute error of {points} points widens the interval"
    return f"Satisfaction is predicted by a model that learnt from {learnt}; {error}."


def dialogue_section(source: ReportSource) -> DialogueSection | None:
    """The dialogues of a run, or None where it replayed none."""
    ours = _trials(source, source.candidate)
    if ours is None:
        return None
    theirs = (_trials(source, source.baseline) if source.baseline is not None else None) or {}
    outcomes = {key: _dialogue_outcome(trials) for key, trials in ours.items()}
    shown: list[DialogueView] = []
    for outcome, most in (("failed", MAX_FAILED), ("missing", MAX_FAILED), ("passed", MAX_PASSED)):
        # Dialogues that the baseline passed come first: those are what the candidate lost.
        keys = sorted(
            (key for key in ours if outcomes[key] == outcome),
            key=lambda key: (_dialogue_outcome(theirs.get(key, ())) != "passed", key),
        )
        shown += [_dialogue(key, ours[key], theirs.get(key, ()), outcome) for key in keys[:most]]
    shown = _fitting(shown)
    counts = [
        (_PLURAL[name], list(outcomes.values()).count(name)) for name in ("failed", "missing", "passed")
    ]
    return DialogueSection(
        shown=tuple(shown),
        counts=tuple((name, number) for name, number in counts if number),
        left_out=len(ours) - len(shown),
        has_baseline=bool(theirs),
    )


def _fitting(dialogues: Sequence[DialogueView]) -> list[DialogueView]:
    """The first ones, as many as the page holds."""
    sizes = accumulate(_size(dialogue) for dialogue in dialogues)
    fitting = sum(size <= MAX_BYTES for size in sizes)
    return list(dialogues[: max(1, fitting)])


def _size(dialogue: DialogueView) -> int:
    """Bytes in the page: the texts as they are escaped, and the markup around each turn."""
    texts = []
    for turn in dialogue.turns:
        texts += [turn.user, turn.baseline_user]
        for reply in (turn.candidate, turn.baseline):
            if reply is not None:
                texts += [reply.text, reply.fault, *reply.facts, *(check.text for check in reply.checks)]
    written = sum(len(escape(visible(text)).encode("utf-8", "replace")) for text in texts)
    return written + _BYTES_A_TURN * len(dialogue.turns)


def _trials(source: ReportSource, evidence: Evidence) -> dict[str, tuple[Trial, ...]] | None:
    setup = source.context.dialogues
    return None if setup is None else group_trials(evidence.turns, setup).by_dialogue


def _dialogue_outcome(trials: Sequence[Trial]) -> str:
    """Failed if any trial failed, else missing if any is, else passed."""
    found = {trial.outcome for trial in trials}
    return next((outcome for outcome in ("failed", "missing", "passed") if outcome in found), "missing")


def _dialogue(key: str, ours: Sequence[Trial], theirs: Sequence[Trial], outcome: str) -> DialogueView:
    trial = next((trial for trial in ours if trial.outcome == outcome), None)
    number = trial.trial if trial is not None else 0
    other = next((item for item in theirs if item.trial == number), None)
    first = next(iter([*(trial.turns if trial else ()), *(other.turns if other else ())]), None)
    failing = next((turn for turn in trial.turns if turn_failed(turn)), None) if trial else None
    turns = _turns(trial, other)
    shown = _shown_turns(turns)
    return DialogueView(
        dialogue_id=key,
        locale=first.locale if first else "",
        tags=tuple(first.tags) if first else (),
        outcome=outcome,
        baseline_outcome=_dialogue_outcome(theirs) if theirs else "",
        summary=_summary(ours),
        trial=number,
        failing=_first_failure(failing) if failing else "",
        turns=shown,
        turns_left_out=len(turns) - len(shown),
    )


def _shown_turns(turns: tuple[TurnView, ...]) -> tuple[TurnView, ...]:
    """The first turns, or as many around the candidate's first failure where that comes later."""
    failed = next((index for index, turn in enumerate(turns) if turn.candidate and turn.candidate.failed), 0)
    start = 0 if failed < MAX_TURNS else min(failed - MAX_TURNS // 2, len(turns) - MAX_TURNS)
    return turns[start : start + MAX_TURNS]


def _summary(trials: Sequence[Trial]) -> str:
    passed = sum(trial.outcome == "passed" for trial in trials)
    return f"{passed} of {len(trials)} trials passed" if trials else "no trial was recorded"


def _first_failure(turn: TurnRecord) -> str:
    where = f"turn {turn.turn_index + 1}"
    check = next((item for item in turn.expectations if not item.passed), None)
    if check is None:
        return f"{where}: {turn.reason or turn.status}"
    return f"{where}: {check.kind} {_brief(check.want)}"


def _turns(ours: Trial | None, theirs: Trial | None) -> tuple[TurnView, ...]:
    candidate = {turn.turn_index: turn for turn in ours.turns} if ours else {}
    baseline = {turn.turn_index: turn for turn in theirs.turns} if theirs else {}
    views = []
    for index in sorted({*candidate, *baseline}):
        mine, other = candidate.get(index), baseline.get(index)
        said = [turn.user_text for turn in (mine, other) if turn is not None]
        views.append(
            TurnView(
                number=index + 1,
                user=_clipped(said[0]),
                baseline_user=_clipped(said[1]) if len(said) == 2 and said[1] != said[0] else "",
                candidate=_reply(mine) if mine else None,
                baseline=_reply(other) if other else None,
            )
        )
    return tuple(views)


def _reply(turn: TurnRecord) -> ReplyView:
    facts = [
        f"intent {turn.intent}" if turn.intent else "",
        "handed over" if turn.handover else "",
        f"satisfaction {turn.satisfaction:.1f}" if turn.satisfaction is not None else "",
        f"first token {numbers.number(turn.first_token_ns / 1e6, 'ms')}"
        if turn.first_token_ns is not None
        else "",
        f"{turn.reused_tokens} of {turn.prompt_tokens} tokens reused"
        if turn.prompt_tokens and turn.reused_tokens is not None
        else "",
    ]
    return ReplyView(
        text=_clipped(turn.text),
        cut=numbers.count(len(turn.text) - MAX_CHARACTERS) if len(turn.text) > MAX_CHARACTERS else "",
        failed=turn_failed(turn),
        fault=""
        if turn.status == "ok"
        else f"{turn.status.replace('_', ' ')}: {turn.reason or 'no reason given'}",
        checks=tuple(
            CheckView(item.passed, _check(item.kind, item.want, item.got, item.passed))
            for item in turn.expectations
            # Of every turn, and of interest only where it fails.
            if item.kind != "prompt_tokens" or not item.passed
        )
        + tuple(
            CheckView(check.outcome == "honoured", _ledger(check))
            for check in turn.ledger
            # Probes stand among the expectations already.
            if not check.probe
        ),
        facts=tuple(fact for fact in facts if fact),
    )


def _ledger(check: LedgerCheck) -> str:
    said = "" if check.outcome == "honoured" else f", said {_brief(check.got)}"
    return f"{check.outcome} {check.name} {_brief(check.want)}{said}"


def _check(kind: str, want: object, got: object, passed: bool) -> str:
    text = f"{kind} {_brief(want)}"
    # For a text expectation `got` is the reply, which stands right above.
    shows_got = not passed and kind in ("intent", "handover", "max_ms", "slots", "prompt_tokens")
    return f"{text}, got {_brief(got)}" if shows_got else text


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…"


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 120 else text[:117] + "…"
