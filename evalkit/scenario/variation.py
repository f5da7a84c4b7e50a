"""Seeded variation between the trials of a dialogue: paraphrases, typing errors, code-switching, changes of mind.

Trial 0 is the dialogue as written. Every other trial draws from its own generator, seeded by SHA-256 of run
seed, dialogue and trial, so that neither order nor concurrency nor the process changes what a user says.
"""

import math
import re
from collections.abc import Sequence
from random import Random
from typing import Literal

from evalkit.canonical import canonical_json, sha256_bytes
from evalkit.scenario.code_switching import can_switch, switch
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.user_schema import ModelUser, RecordedUser, RuleUser

Variation = Literal["paraphrase", "typos", "code_switching"]

TYPO_RATE = 0.03
"""Share of the letters outside facts that are mistyped."""

_PLACEHOLDER_OR_CHARACTER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}|.", re.DOTALL)


def trial_seed(run_seed: int, dialogue_id: str, trial: int) -> int:
    """Seed of one trial, 63 bits: the same in every process."""
    return int(sha256_bytes(canonical_json([run_seed, dialogue_id, trial]))[:16], 16) >> 1


def user_texts(dialogue: Dialogue, run_seed: int, trial: int, variation: Sequence[Variation]) -> list[str]:
    """What the user says in each turn of a trial, facts filled in.

    Trial 0 says the first paraphrase of each turn; later trials go through the others in a seeded order, so
    that none comes again before all were said.
    """
    if isinstance(dialogue.user, RecordedUser):
        variation = ()  # what was recorded is said word for word
    random = Random(trial_seed(run_seed, dialogue.id, trial))
    order = Random(trial_seed(run_seed, dialogue.id, 0))
    texts = []
    for index, turn in enumerate(dialogue.turns):
        alternatives = [turn.user[0], *order.sample(turn.user[1:], len(turn.user) - 1)]
        template = alternatives[trial % len(alternatives)] if "paraphrase" in variation else turn.user[0]
        if trial > 0 and "code_switching" in variation:
            template = switch(template, dialogue.locale, random)
        if trial > 0 and "typos" in variation:
            template = mistype(template, random)
        texts.append(dialogue.fill(template, index))
    return texts


def played(dialogue: Dialogue, run_seed: int, trial: int) -> Dialogue:
    """The dialogue of one trial: with the changes of mind and digressions that were drawn for it.

    Trial 0 takes the first value of each change, and no digression. A turn in which the mind changes says so first.
    """
    user = dialogue.user
    if not isinstance(user, RuleUser) or not (user.changes_mind or user.digresses):
        return dialogue
    random = Random(trial_seed(run_seed, f"{dialogue.id}/user", trial))
    turns = list(dialogue.turns)

    def prepend(index: int, text: str) -> None:
        texts = [joined(text, said, dialogue.locale) for said in turns[index].user]
        turns[index] = turns[index].model_copy(update={"user": texts})

    for change in user.changes_mind:
        index = change.turn - 1
        value = change.to[0] if trial == 0 else random.choice(change.to)
        revises = {**turns[index].revises, change.fact: value}
        turns[index] = turns[index].model_copy(update={"revises": revises})
        prepend(index, change.say)
    if user.digresses is not None and trial > 0:
        for index in range(1, len(turns)):
            if random.random() < user.digresses.share:
                prepend(index, random.choice(user.digresses.texts))
    return dialogue.model_copy(update={"turns": turns})


def joined(first: str, second: str, locale: str) -> str:
    """Two sentences of one user."""
    return first + second if locale == "zh" else f"{first} {second}"


def varies(dialogue: Dialogue, variation: Sequence[Variation], temperature: float) -> bool:
    """Whether trials of a dialogue have a source of variation; if not, they are copies of one trial."""
    if temperature > 0:
        return True
    if _draws(dialogue):
        return True
    if isinstance(dialogue.user, RecordedUser | ModelUser):
        return False
    if "code_switching" in variation and any(
        can_switch(turn.user[0], dialogue.locale) for turn in dialogue.turns
    ):
        return True
    if "paraphrase" in variation and any(len(turn.user) > 1 for turn in dialogue.turns):
        return True
    return "typos" in variation and any(_has_letters(turn.user[0]) for turn in dialogue.turns)


def different_trials(
    dialogue: Dialogue, variation: Sequence[Variation], temperature: float, trials: int
) -> int:
    """How many of a dialogue's trials are conversations of their own: trial t is a copy of trial t modulo this number.

    Paraphrases are gone through in turn, so that they come again where there are more trials; everything else is drawn.
    """
    if not varies(dialogue, variation, temperature):
        return 1
    if temperature > 0 or set(variation) != {"paraphrase"} or _draws(dialogue):
        return trials
    return min(trials, math.lcm(*(len(turn.user) for turn in dialogue.turns)))


def _draws(dialogue: Dialogue) -> bool:
    """Whether the user itself differs from trial to trial by chance."""
    user = dialogue.user
    if isinstance(user, ModelUser):
        return user.temperature > 0
    return isinstance(user, RuleUser) and (
        user.digresses is not None or any(len(change.to) > 1 for change in user.changes_mind)
    )


def mistype(template: str, random: Random, rate: float = TYPO_RATE) -> str:
    """`template` with typing errors: a letter left out, doubled or swapped with the next one.

    Facts (`{name}`), digits and punctuation stay as they are; characters of Chinese are only swapped.

    Args:
        template: the user's text.
        random: the trial's generator.
        rate: share of the letters that are hit.
    """
    pieces: list[str] = _PLACEHOLDER_OR_CHARACTER.findall(template)
    result: list[str] = []
    index = 0
    while index < len(pieces):
        piece = pieces[index]
        following = pieces[index + 1] if index + 1 < len(pieces) else ""
        index += 1
        if not _letter(piece) or random.random() >= rate:
            result.append(piece)
            continue
        kind = random.choice(("drop", "double", "swap")) if piece.isascii() else "swap"
        if kind == "swap" and _letter(following):
            result += [following, piece]
            index += 1
        elif kind == "drop":
            continue
        elif kind == "double":
            result += [piece, piece]
        else:
            result.append(piece)
    mistyped = "".join(result)
    # A turn must not become empty: the server refuses it.
    return mistyped if mistyped.strip() else template


def _has_letters(template: str) -> bool:
    return any(_letter(piece) for piece in _PLACEHOLDER_OR_CHARACTER.findall(template))


def _letter(piece: str) -> bool:
    return len(piece) == 1 and piece.isalpha()
