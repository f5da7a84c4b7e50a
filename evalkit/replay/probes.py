"""Recall probes asked again in a single turn: the facts and the question are all that is said.

What a model recalls there and not in the conversation it lost between turns.
"""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from evalkit.replay.client import Sampling, SandboxClient, SandboxError
from evalkit.runs.records import TurnRecord
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.matching import states
from evalkit.scenario.variation import joined

if TYPE_CHECKING:
    from evalkit.replay.trial import ReplaySettings


def probe_alone(
    dialogue: Dialogue,
    record: TurnRecord,
    client: SandboxClient,
    session_id: str,
    settings: "ReplaySettings",
) -> TurnRecord:
    """The record with `single_turn` filled in; unchanged where it asks for no fact, or no answer came.

    Args:
        dialogue: as played.
        record: of one turn.
        client: of the sandbox.
        session_id: of the conversation; the probe has a session of its own.
        settings: of the replay.
    """
    probes = dialogue.turns[record.turn_index].expect.recalls
    if not probes or record.total_ns is None:
        return record
    alone = f"{session_id}-{record.turn_index}"
    try:
        client.open(alone, dialogue.locale)
        try:
            reply = client.turn(
                alone,
                f"{record.turn_id}-alone",
                single_turn_text(dialogue, record.turn_index),
                Sampling(settings.max_new_tokens, settings.temperature),
                timeout_s=settings.turn_timeout_s,
            )
        finally:
            with suppress(SandboxError):
                client.close(alone)
    except SandboxError:
        # Beside the trial: that it is missing shows in its own figure's coverage.
        return record
    held = [states(reply.text, dialogue.fact(name, record.turn_index), whole_words=True) for name in probes]
    return replace(record, single_turn=held)


def single_turn_text(dialogue: Dialogue, index: int) -> str:
    """The turns that state the probed facts, and the question of turn `index`, as one text."""
    stated = {dialogue.stated_before(name, index) for name in dialogue.turns[index].expect.recalls}
    wanted = sorted({turn for turn in stated if turn is not None} | {index})
    text = ""
    for turn in wanted:
        said = dialogue.fill(dialogue.turns[turn].user[0], turn)
        text = joined(text, said, dialogue.locale) if text else said
    return text
