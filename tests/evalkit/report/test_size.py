"""The page stays small and readable, however large the run; what isn't shown is counted."""

from dataclasses import replace

import pytest

from evalkit.report.html import render_html
from evalkit.report.view import build_view
from evalkit.runs.evidence import Evidence
from tests.evalkit import fake_run


def test_many_dialogues_and_samples_stay_readable() -> None:
    base = fake_run.source()
    turns = tuple(
        turn
        for number in range(300)
        for turn in fake_run.dialogue(f"d{number:04d}", 0, recalls=number % 2 == 0)
    )
    ids = tuple(sorted({turn.dialogue_id for turn in turns}))
    setup = replace(base.context.dialogues, dialogue_ids=ids, trials=1, turns=dict.fromkeys(ids, 3))  # type: ignore[type-var]
    samples = tuple(fake_run.text(f"t{number:05d}", "long text " * 500) for number in range(2000))
    view = build_view(
        replace(base, candidate=Evidence(samples, turns), context=replace(base.context, dialogues=setup))
    )
    assert view.dialogues is not None
    assert len(view.dialogues.shown) == 48 and view.dialogues.left_out == 252
    assert "48 dialogues are shown; 252 more are in the evidence" in render_html(view)
    assert len(render_html(view)) < 1_000_000


@pytest.mark.parametrize("char", ["话", "\u202e"])
def test_however_much_a_model_says_the_page_stays_small(char: str) -> None:
    """45 dialogues of 40 turns with replies of a million characters: what isn't shown is counted."""
    base = fake_run.source()
    long = char * 1_000_000
    first = fake_run.dialogue("d", 0, recalls=True)[0]
    turns = tuple(
        replace(
            first if index != 35 else fake_run.dialogue("d", 0, recalls=False)[2],
            dialogue_id=name,
            turn_index=index,
            dialogue_turns=40,
            user_text=long,
            text=long,
        )
        for name in (f"d{number:03d}" for number in range(45))
        for index in range(40)
    )
    ids = tuple(sorted({turn.dialogue_id for turn in turns}))
    assert base.context.dialogues is not None
    setup = replace(base.context.dialogues, dialogue_ids=ids, trials=1, turns=dict.fromkeys(ids, 40))
    view = build_view(
        replace(
            base,
            candidate=Evidence(base.candidate.samples, turns),
            baseline=Evidence(turns=turns),
            context=replace(base.context, dialogues=setup),
        )
    )
    assert view.dialogues is not None
    shown = view.dialogues.shown[0]
    assert [turn.number for turn in shown.turns if turn.candidate and turn.candidate.failed] == [36]
    assert (len(shown.turns), shown.turns_left_out) == (30, 10)
    assert len(view.dialogues.shown) + view.dialogues.left_out == 45
    page = render_html(view)
    assert "… 998\u202f500 more characters are in the evidence" in page
    assert "… 10 more turns are in the evidence (turns.parquet)" in page
    assert len(page.encode()) < 5_000_000
