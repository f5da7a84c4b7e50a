"""Small print of dialogue metrics."""

from evalkit.report.dialogue_notes import dialogue_notes


def test_distance_blame_and_names_are_shown() -> None:
    details = {
        "by_distance": [{"turns": 2, "asked": 4, "honoured": 3, "contradicted": 1, "forgotten": 0}],
        "contradicted": 1,
        "forgotten": 0,
        "blame": {"model": 2, "user": 0, "harness": 0, "infrastructure": 1},
        "flaky": [f"d{number}" for number in range(7)],
    }
    assert dialogue_notes(details) == [
        "2 turns back: 3 of 4",
        "1 contradicted, 0 forgotten",
        "trials without success, by who is to blame: model 2, infrastructure 1",
        "flaky: d0, d1, d2, d3, d4 and 2 more",
    ]
    assert dialogue_notes({}) == []
