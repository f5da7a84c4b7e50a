"""Online figures become the calibration history that a business figure reads."""

from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.feedback.outcomes import ingest_outcomes
from evalkit.metrics.history import read_history

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


@pytest.mark.parametrize(
    ("spec", "rows", "message"),
    [
        ("version: 1\nfields: {release: r, online: o}\n", "r,o\na,1\n", "exactly one of `offline`"),
        (COLUMN, "r,d,n,o,s\na,x,0,1,1\n", "a number above 0"),
        (COLUMN, "r,d,n,o,s\na,x,1,many,1\n", "online.csv:2: o: a finite number"),
        (COLUMN, "r,d,n,o\na,x,1,2\n", "no field 's'"),
        (COLUMN, "r,d,n,o,s\n", "no release has both figures"),
        (COLUMN, "r,d,n,o,s\na,x,1\n", "online.csv:2: 3 fields"),
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
