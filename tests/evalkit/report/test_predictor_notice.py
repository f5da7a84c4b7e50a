"""Every report with a predicted satisfaction says what its predictor learnt from, and how wrong it is."""

from dataclasses import replace

import pytest

from evalkit.report.view import build_view
from tests.evalkit.fake_run import metric, source


@pytest.mark.parametrize(
    ("data", "error", "parts"),
    [
        (
            "generated",
            0.41,
            ("generated examples, not from people's ratings", "0.41 points widens the interval"),
        ),
        ("rated", 0.3, ("learnt from people's ratings", "0.3 points")),
        (None, None, ("examples of unknown origin", "its error isn't known and isn't in the interval")),
    ],
)
def test_the_report_says_what_satisfaction_stands_on(
    data: str | None, error: float | None, parts: tuple[str, ...]
) -> None:
    run = source()
    assert run.context.dialogues is not None
    setup = replace(run.context.dialogues, satisfaction_data=data, satisfaction_error=error)
    results = replace(
        run.results, metrics=(*run.results.metrics, metric("dialogue/satisfaction", 4.0, 3.5, 4.5))
    )
    view = build_view(replace(run, results=results, context=replace(run.context, dialogues=setup)))
    (notice,) = [notice for notice in view.notices if notice.startswith("Satisfaction is predicted")]
    assert all(part in notice for part in parts)
