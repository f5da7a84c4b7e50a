"""Online figures become the calibration history that a business figure reads."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from evalkit.cli import cli
from evalkit.errors import InputError
from evalkit.feedback.outcomes import ingest_outcomes
from evalkit.metrics.history import read_history
from evalkit.runs.evidence import Evidence
from tests.evalkit.fake_run import metric, results

COLUMN = "version: 1\nfields: {release: r, online: o, cases: n, date: d, offline: s}\n"


def test_rows_of_a_release_are_averaged_by_their_cases(tmp_path: Path) -> None:
    lines = [
        "r,d,n,o,s",
        "b,2026-02-02,10,4.0,0.8",
        "b,2026-02-03,30,2.0,0.8",
        "c,2026-03-01,1,3,0.9",
        "c,2026-03-01,1,3,0.8",
    ]
    lines += [f"a{number},2026-01-0{number},5,{6 - number / 2},{0.5 + number / 20}" for number in range(1, 6)]
    (tmp_path / "online.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "map.yaml").write_text(COLUMN)
    found = ingest_outcomes(tmp_path / "online.csv", tmp_path / "map.yaml", tmp_path / "history.csv")
    assert found.left_out == {"c": "its rows hold 2 different offline scores"} and found.rows_read == 9
    assert [row.release for row in found.rows] == ["a1", "a2", "a3", "a4", "a5", "b"]
    assert (found.rows[-1].offline, found.rows[-1].online, found.rows[-1].date) == (0.8, 2.5, "2026-02-03")
    history = read_history(tmp_path / "history.csv", "linear")
    assert history.rows[-1] == (0.8, 2.5) and len(history.rows) == 6


def test_dates_are_compared_as_times_and_written_as_they_stand(tmp_path: Path) -> None:
    dates = ["2026-W40", "20260902", "2026-08", "2026-09-03T01:00:00+02:00", "2026-09-02T22:30:00Z"]
    rows = [f"a{number},{date},1,2,{number / 10}" for number, date in enumerate(dates)]
    (tmp_path / "online.csv").write_text("\n".join(["r,d,n,o,s", *rows]) + "\n")
    (tmp_path / "map.yaml").write_text(COLUMN)
    found = ingest_outcomes(tmp_path / "online.csv", tmp_path / "map.yaml", tmp_path / "history.csv")
    assert [row.release for row in found.rows] == ["a2", "a1", "a4", "a3", "a0"]
    assert {row.date for row in found.rows} == set(dates)


@pytest.mark.parametrize("date", ["soon", "2026-02-30", "03/09/2026", ""])
def test_a_date_that_is_none_is_an_error_of_its_line(date: str, tmp_path: Path) -> None:
    (tmp_path / "online.csv").write_text(f"r,d,n,o,s\na,2026-01-01,1,2,0.5\nb,{date},1,2,0.5\n")
    (tmp_path / "map.yaml").write_text(COLUMN)
    with pytest.raises(InputError, match=rf"online.csv:3: d: '{date}' isn't a time; ISO 8601"):
        ingest_outcomes(tmp_path / "online.csv", tmp_path / "map.yaml", tmp_path / "history.csv")


RUNS = """\
version: 1
fields: {release: model, online: turns}
releases: {"2.1": DIGEST_1, "2.2": DIGEST_2}
offline: {metric: dialogue/consistency, runs: [runs/*]}
"""


def run(folder: Path, digest: str, value: float | None, signature: str = "dlg|v:1") -> None:
    measured = metric("dialogue/consistency", value, signature=signature)
    folder.mkdir(parents=True)
    (folder / "results.json").write_bytes(results([measured], Evidence(), digest).to_bytes())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs of three releases, and the online figures of four."""
    run(tmp_path / "runs" / "a", "1" * 64, 0.8)
    run(tmp_path / "runs" / "b", "2" * 64, 0.9)
    run(tmp_path / "runs" / "c", "3" * 64, None)
    (tmp_path / "map.yaml").write_text(
        RUNS.replace("DIGEST_1", f'"{"1" * 64}"').replace("DIGEST_2", f'"{"2" * 64}"')
    )
    rows = [
        {"model": "2.1", "turns": 4.5},
        {"model": "2.2", "turns": 4},
        {"model": "3" * 64, "turns": 3},
        {"model": "2.3", "turns": 3},
    ]
    (tmp_path / "online.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_offline_scores_come_from_the_runs_of_the_releases(runs: Path) -> None:
    found = ingest_outcomes(runs / "online.jsonl", runs / "map.yaml", runs / "history.csv")
    assert [(row.release, row.offline, row.online) for row in found.rows] == [
        ("2.1", 0.8, 4.5),
        ("2.2", 0.9, 4.0),
    ]
    assert found.signature == "dlg|v:1" and set(found.left_out) == {"3" * 64, "2.3"}
    assert "has no value: not measured" in found.left_out["3" * 64]
    assert "no run measured the model 2.3" in found.left_out["2.3"]
    assert (runs / "history.csv").read_text().splitlines()[1] == "2.1,,0.8,4.5"
    words = [
        "ingest",
        "outcomes",
        str(runs / "online.jsonl"),
        "--map",
        str(runs / "map.yaml"),
        "--out",
        str(runs / "h.csv"),
    ]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0 and "2 releases with both figures" in done.output
    assert json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)["rows_read"] == 4


def test_scores_that_can_not_be_compared_are_refused(runs: Path) -> None:
    run(runs / "runs" / "d", "4" * 64, 0.7, signature="dlg|v:2")
    with pytest.raises(InputError, match="measured in different ways, not comparable"):
        ingest_outcomes(runs / "online.jsonl", runs / "map.yaml", runs / "history.csv")


def test_two_scores_of_one_model_are_refused(runs: Path) -> None:
    run(runs / "runs" / "d", "1" * 64, 0.7)
    with pytest.raises(InputError, match="of one model differently; name one of them"):
        ingest_outcomes(runs / "online.jsonl", runs / "map.yaml", runs / "history.csv")


@pytest.mark.parametrize(
    ("spec", "rows", "message"),
    [
        ("version: 1\nfields: {release: r, online: o}\n", "r,o\na,1\n", "exactly one of `offline`"),
        (COLUMN, "r,d,n,o,s\na,x,0,1,1\n", "a number above 0"),
        (COLUMN, "r,d,n,o,s\na,x,1,many,1\n", "online.csv:2: o: a finite number"),
        (COLUMN, "r,d,n,o\na,2026-01-01,1,2\n", "no field 's'"),
        (COLUMN, "r,d,n,o,s\n ,2026-01-01,1,1,1\n", "online.csv:2: r: is empty"),
        (COLUMN, "r,d,n,o,s\na,2026-01-01,1e308,10,1\n", "release 'a': figures times cases are too large"),
        (COLUMN, "r,d,n,o,s\na,2026-01-01,1e308,1,1\na,2026-01-01,1e308,1,1\n", "figures times cases are too large"),
        (COLUMN, "r,d,n,o,s\na,2026-01-01,1e308,10,1\na,2026-01-01,1e308,-10,1\n", "figures times cases are too large"),
        (COLUMN, "r,d,n,o,s\n", "no release has both figures"),
        (COLUMN, "r,d,n,o,s\na,2026-01-01,1\n", "online.csv:2: 3 fields"),
        ("version: 1\nfields: {release: r, online: o}\noffline: {metric: x, runs: [none/*]}\n", "r,o\na,1\n", "matches no finished run"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(tmp_path: Path, spec: str, rows: str, message: str) -> None:
    (tmp_path / "online.csv").write_text(rows)
    (tmp_path / "map.yaml").write_text(spec)
    with pytest.raises(InputError) as error:
        ingest_outcomes(tmp_path / "online.csv", tmp_path / "map.yaml", tmp_path / "history.csv")
    assert message in str(error.value)
    assert not (tmp_path / "history.csv").exists()
