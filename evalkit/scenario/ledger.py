"""The fact ledger: what was stated in a conversation, and what later replies make of it. No model as judge.

The user states facts with `{fact}` in what they say; a reply states what the expressions of `ledger` find in it. Each
later statement of a reply, and each recall probe, has one of three outcomes:

- honoured: the value in force;
- contradicted: another value, that was never the one in force (or one that the model itself stated otherwise before);
- forgotten: no value where one was asked for, or one that the user has revised since.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evalkit.runs.records import LedgerCheck, LedgerOutcome
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.matching import normalise, states


@dataclass(frozen=True)
class _Entry:
    """A value in force and the turn in which it was stated; `old` are the values before it."""

    value: str
    turn: int
    old: tuple[str, ...] = ()


def check_ledger(dialogue: Dialogue, replies: Sequence[str]) -> list[list[LedgerCheck]]:
    """The checks of each turn.

    Args:
        dialogue: as it was played.
        replies: texts of the turns that were played, in order; "" where the model failed one.
    """
    entries: dict[str, _Entry] = {}
    found: list[list[LedgerCheck]] = []
    for index, text in enumerate(replies):
        # Facts that an expression is written with have the values of that turn.
        patterns = {name: dialogue.fill_pattern(pattern, index) for name, pattern in dialogue.ledger.items()}
        for name in dialogue.stated_in(index):
            entries[name] = _stated_again(entries.get(name), dialogue.fact(name, index), index)
        probed = dialogue.turns[index].expect.recalls
        checks = []
        for name in (*probed, *(name for name in patterns if name not in probed)):
            said = patterns[name].find(text, 1) if name in patterns else None
            entry = entries.get(name)
            if entry is None:
                # The model is the first to state it; of a fact of the user that is still to come it can't know.
                if said and name not in dialogue.facts:
                    entries[name] = _Entry(said, index)
                continue
            honoured = (
                states(text, entry.value, whole_words=True) if said is None else _same(said, entry.value)
            )
            if said is None and name not in probed:
                continue
            outcome = "honoured" if honoured else _failure(said, entry)
            checks.append(
                LedgerCheck(name, outcome, entry.value, said, index - entry.turn, probe=name in probed)
            )
        found.append(checks)
    return found


def _stated_again(before: _Entry | None, value: str, turn: int) -> _Entry:
    if before is None or _same(before.value, value):
        return _Entry(value, turn, before.old if before else ())
    return _Entry(value, turn, (*before.old, before.value))


def _failure(said: str | None, entry: _Entry) -> LedgerOutcome:
    stale = said is not None and any(_same(said, value) for value in entry.old)
    return "forgotten" if said is None or stale else "contradicted"


def _same(one: str, other: str) -> bool:
    return normalise(one) == normalise(other)
