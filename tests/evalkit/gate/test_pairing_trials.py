"""Trials that only one model has: planned all the same, in the slices that either side's records name."""

from dataclasses import replace

from evalkit.gate.pairing import pair
from evalkit.runs.evidence import Evidence
from tests.evalkit.fake_run import random_evidence

TALKS = random_evidence(1, texts=0, dialogues=12)
NAMES = sorted({turn.dialogue_id for turn in TALKS.turns})


def side(without: str, **tags: str) -> Evidence:
    """The dialogues of a model but one, some of them tagged."""
    places = {NAMES[int(place.removeprefix("d"))]: [tag] for place, tag in tags.items()}
    return Evidence(
        (),
        tuple(
            replace(turn, tags=places.get(turn.dialogue_id, []))
            for turn in TALKS.turns
            if turn.dialogue_id != without
        ),
    )


def test_a_dialogue_that_one_model_lacks_is_planned_and_in_its_slice() -> None:
    pairing = pair(side(NAMES[0], d1="ours", d2="left"), side(NAMES[1], d0="theirs", d2="right"))
    counts = pairing.counts("turn")
    assert (counts.planned, counts.paired) == (36, 30)
    assert pairing.coverage(("turn",), None) == 30 / 36
    for tag, covered in (("ours", 0.0), ("theirs", 0.0), ("left", 1.0), ("right", 1.0), ("nobody", None)):
        assert pairing.coverage(("turn",), tag) == covered, tag
