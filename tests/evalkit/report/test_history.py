"""Runs over time as terminal rows and as SVG: everything is shown, nothing is invented."""

from xml.etree import ElementTree

import pytest

from evalkit.report.history import history_svg, print_runs, print_series
from evalkit.runs.history import History, HistoryRun, Series
from evalkit.runs.registry_rows import MetricEntry, RunEntry, VerdictEntry

SVG = "{http://www.w3.org/2000/svg}"


def run(number: int, verdict: str | None = "PASS") -> HistoryRun:
    entry = RunEntry(
        run_id=f"r{number}",
        created=f"2026-11-{number:02d}T12:00:00Z",
        folder="runs/x",
        seal_sha256="5" * 64,
        scenario="shop",
        scenario_sha256="c" * 64,
        model_name=f"model <{number}> & sons",
        model_digest="d" * 64,
        baseline_model_digest=None,
        first_release=False,
    )
    return HistoryRun(entry, None if verdict is None else VerdictEntry("b" * 64, verdict))


def point(value: float | None, low: float | None = None, high: float | None = None) -> MetricEntry:
    return MetricEntry(
        run_id="r",
        name="rate/oov",
        k=None,
        slice=None,
        value=value,
        reason=None if value is not None else "no token was scored",
        unit="share",
        low=low,
        high=high,
        confidence=None if low is None and high is None else 0.95,
        n=10,
        signature="ppl|v:1",
    )


def history(*points: MetricEntry) -> History:
    runs = tuple(run(number + 1, "FAIL" if number else "PASS") for number in range(len(points)))
    series = Series(
        "shop", "c" * 64, "rate/oov", None, "zh", "ppl|v:1", tuple(zip(runs, points, strict=True))
    )
    return History(runs, "rate/oov", (series,))


SHOWN = history(point(0.1, 0.05, 0.2), point(0.15), point(None), point(0.12, None, 0.3))


def test_the_terminal_shows_value_interval_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    print_series(SHOWN)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rate/oov [zh]  (scenario shop cccccccccccc, ppl|v:1)"
    whole, alone, absent, half = lines[2:6]
    assert "10 %" in whole
    assert "5 % … 20 % at 95 %" in whole
    assert whole.index("├") < whole.index("●") < whole.index("┤")
    assert "no interval" in alone
    assert "─" not in alone
    assert "none: no token was scored" in absent
    assert "●" not in absent
    # An end that isn't known is no cap.
    assert "├" not in half
    assert "┤" in half


def test_the_svg_is_one_file_without_network_or_markup_from_outside() -> None:
    text = history_svg(SHOWN)
    root = ElementTree.fromstring(text)
    assert len(list(root.iter(f"{SVG}circle"))) == 3
    written = [item.text or "" for item in root.iter(f"{SVG}text")]
    assert any("model <1> & sons" in item for item in written)
    assert any("none: no token was scored" in item for item in written)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    width = float(root.attrib["width"])
    places = [float(item.attrib[name]) for item in root.iter(f"{SVG}line") for name in ("x1", "x2")]
    assert all(0 <= place <= width for place in places)


@pytest.mark.parametrize("points", [(point(None),), (point(0.0, 0.0, 0.0),), (point(1e300, 1e-300, 1e308),)])
def test_odd_values_are_drawn(points: tuple[MetricEntry, ...], capsys: pytest.CaptureFixture[str]) -> None:
    print_series(history(*points))
    ElementTree.fromstring(history_svg(history(*points)))
    assert "rate/oov" in capsys.readouterr().out


def test_the_list_of_runs_shows_each_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    print_runs(History((run(1), run(2, "INCONCLUSIVE"), run(3, None))))
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split("dddddddddddd")[1].strip() for line in lines] == ["PASS", "INCONCLUSIVE", "NOT JUDGED"]
    print_runs(History(()))
    assert capsys.readouterr().out == "no run is recorded yet\n"
