"""What a dialogue costs the business, from what happened in it and the scenario's declared costs."""

from collections.abc import Mapping

from evalkit.metrics.trials import Trial
from evalkit.runs.records import TurnRecord

# Expectations that only an answer can hold; the others hold of a reply that says nothing, too.
_ANSWERS = frozenset({"contains", "matches", "slots", "recalls", "order"})


def settled(trial: Trial) -> bool:
    """Whether the matter was settled without a human.

    The last turn holds with the dialogue's own rules, so does the last one that an answer was expected of (a dialogue may
    end in thanks), and nobody took over.
    """
    last = trial.turns[-1]
    if last.status != "ok" or handed_over(trial):
        return False
    asked = (turn for turn in reversed(trial.turns) if any(one.kind in _ANSWERS for one in turn.expectations))
    decisive = next(asked, last)
    return all(item.passed for turn in (decisive, last) for item in turn.expectations)


def handed_over(trial: Trial) -> bool:
    """Whether a human took over."""
    return any(turn.handover for turn in trial.turns)


def late_turns(trial: Trial) -> int | None:
    """Turns between the first that needed a hand-over and the one that brought it; None where none was needed.

    One that never came is late by all turns left.
    """
    first = next((turn for turn in trial.turns if turn.handover_expected), None)
    if first is None:
        return None
    done = _taken_over(trial)
    end = trial.turns[0].dialogue_turns if done is None else done.turn_index
    return max(0, end - first.turn_index)


def cost_parts(trial: Trial, costs: Mapping[str, float]) -> dict[str, float]:
    """Cost of one trial by kind; kinds as in `evalkit.scenario.schema.DialogueCosts`.

    A hand-over before the turn that needs one is needless, and the needed one missed.
    """
    done, late = _taken_over(trial), late_turns(trial)
    right = done is not None and bool(done.handover_expected)
    happened = {
        "turn": sum(
            turn.status == "ok" and turn.total_ns is not None and not turn.handover for turn in trial.turns
        ),
        "handover": int(done is not None),
        "needless_handover": int(done is not None and not right),
        "missed_handover": int(late is not None and not right),
        "late_turn": late if late is not None and right else 0,
        "unresolved": int(late is None and done is None and not settled(trial)),
    }
    return {kind: costs[kind] * count for kind, count in happened.items()}


def _taken_over(trial: Trial) -> TurnRecord | None:
    return next((turn for turn in trial.turns if turn.handover), None)
