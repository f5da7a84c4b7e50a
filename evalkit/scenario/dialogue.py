"""Dialogue files: what a user says turn by turn, and what must hold of the replies.

A file holds one dialogue at its top level, or several under `dialogues`. `{fact}` in a user text, a gold
reply or an expectation stands for the value of that fact.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from evalkit.scenario.additions_schema import Strict
from evalkit.scenario.patterns import Pattern
from evalkit.scenario.user_schema import PLACEHOLDER, FactName, FactValue, NonEmpty, User


def _true(value: Any) -> Any:
    # For Python 1 equals True.
    if value is not None and value is not True:
        raise ValueError("is true, or left out")
    return value


Yes = Annotated[Literal[True], BeforeValidator(_true)]


class HandoverExpectation(Strict):
    """Whether this turn must, or must not, end in a hand-over to a human.

    `required`: the hand-over is needed from this turn on and may come as late as turn `by_turn` (counted from
    1;
    default: this turn). Turns after it aren't played.
    """

    required: Yes | None = None
    forbidden: Yes | None = None
    by_turn: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_of(self) -> "HandoverExpectation":
        if (self.required is None) == (self.forbidden is None):
            raise ValueError("give exactly one of `required: true` and `forbidden: true`")
        if self.forbidden and self.by_turn is not None:
            raise ValueError("by_turn goes with `required: true`")
        return self


class Expectation(Strict):
    """What must hold of one reply.

    Attributes:
        intent: label that the flow's recogniser gives the user's text.
        handover: see `HandoverExpectation`.
        contains, forbidden: texts that must, or must not, stand in the reply (case and spacing don't matter;
            digits are compared as whole numbers).
        matches: regular expressions (Python, searched, case-sensitive).
        slots: values that the reply must state, by name.
        recalls: facts stated by the user before whose values the reply must state: the recall probes.
        max_ms: longest time of the whole turn in milliseconds, at the client.
    """

    intent: NonEmpty | None = None
    handover: HandoverExpectation | None = None
    contains: list[NonEmpty] = Field(default=[])
    matches: list[NonEmpty] = Field(default=[])
    forbidden: list[NonEmpty] = Field(default=[])
    slots: dict[NonEmpty, FactValue] = Field(default={})
    recalls: list[FactName] = Field(default=[])
    max_ms: float | None = Field(default=None, gt=0, allow_inf_nan=False)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Paraphrases = Annotated[
    list[NonEmpty], BeforeValidator(_as_list, json_schema_input_type=str | list[str]), Field(min_length=1)
]


class Turn(Strict):
    """One user turn: its text (or paraphrases, the plain one first), the gold reply, the expectations.

    Attributes:
        revises: facts that have another value from this turn on: the user changes their mind.
    """

    user: Paraphrases
    gold: NonEmpty
    expect: Expectation = Expectation()
    revises: dict[FactName, FactValue] = Field(default={})


class Never(Strict):
    """A rule over every reply of the dialogue: none may contain the text, or match the expression."""

    contains: NonEmpty | None = None
    matches: NonEmpty | None = None

    @model_validator(mode="after")
    def _one_of(self) -> "Never":
        if (self.contains is None) == (self.matches is None):
            raise ValueError("give exactly one of contains and matches")
        return self


def _as_rule(value: Any) -> Any:
    return {"contains": value} if isinstance(value, str) else value


NeverRule = Annotated[Never, BeforeValidator(_as_rule, json_schema_input_type=str | Never)]
"""A text alone is short for `contains`."""


class EndState(Strict):
    """What must hold when the dialogue is over; only what is declared is compared.

    Attributes:
        handed_over: whether the session is with a human.
        stated: facts whose values must stand in at least one reply.
    """

    handed_over: bool | None = None
    stated: list[FactName] = Field(default=[])


class Dialogue(Strict):
    """One test dialogue.

    Attributes:
        order: texts that must appear in the replies in this order, each in a later turn than the one before.
        ledger: for a fact, or for something that the model itself will state, a regular expression whose one group
            is the value that a reply states of it. Every reply is checked against what was stated before.
        user: who speaks; without it the turns are a script.
    """

    id: Annotated[str, Field(pattern=r"^[^\s/\\\x00-\x1f][^/\\\x00-\x1f]*$", max_length=200)]
    locale: Literal["en", "zh"] = "en"
    persona: str | None = None
    facts: dict[FactName, FactValue] = Field(default={})
    tags: list[NonEmpty] = Field(default=[])
    turns: list[Turn] = Field(min_length=1)
    never: list[NeverRule] = Field(default=[])
    order: list[NonEmpty] = Field(default=[])
    end_state: EndState = EndState()
    ledger: dict[FactName, NonEmpty] = Field(default={})
    user: User | None = None

    def fact(self, name: str, turn: int | None = None) -> str:
        """Value of a fact as text, in force in `turn` (None: at the end); 25.0 and 25 are the same value."""
        last = len(self.turns) - 1 if turn is None else turn
        revised = [one.revises[name] for one in self.turns[: last + 1] if name in one.revises]
        return value_text(revised[-1] if revised else self.facts[name])

    def fill(self, template: str, turn: int | None = None) -> str:
        """`template` with the facts' values, in force in `turn` (None: at the end), in place of `{fact}`."""
        return PLACEHOLDER.sub(lambda match: self.fact(match[1], turn), template)

    def fill_pattern(self, pattern: str, turn: int | None = None) -> Pattern:
        """The regular expression `pattern`, in which `{fact}` stands for the fact's value, literally.

        Raises:
            BrokenPatternError: it isn't a regular expression.
        """
        return Pattern(PLACEHOLDER.sub(lambda match: re.escape(self.fact(match[1], turn)), pattern))

    def stated_before(self, fact: str, turn_index: int) -> int | None:
        """Index of the last turn up to `turn_index` in which the user states `fact`, or None."""
        for index in range(turn_index, -1, -1):
            if fact in self.stated_in(index):
                return index
        return None

    def stated_in(self, index: int) -> frozenset[str]:
        """Facts that the user states in turn `index`."""
        turn = self.turns[index]
        return placeholders(turn.user[0]) | frozenset(turn.revises)

    @property
    def handover_window(self) -> tuple[int, int] | None:
        """First turn that needs a hand-over and the last that may bring it, from 0; None if none does."""
        for index, turn in enumerate(self.turns):
            wanted = turn.expect.handover
            if wanted is not None and wanted.required:
                return index, index if wanted.by_turn is None else wanted.by_turn - 1
        return None


class DialogueFile(Strict):
    """A file with several dialogues."""

    dialogues: list[Dialogue] = Field(min_length=1)


def value_text(value: str | int | float) -> str:
    """A value as people write it: a whole float without its fraction."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def placeholders(template: str) -> frozenset[str]:
    """Names of the facts that `template` uses."""
    return frozenset(PLACEHOLDER.findall(template))
