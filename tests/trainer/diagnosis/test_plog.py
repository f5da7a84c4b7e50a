"""Times, processes and codes in log lines of many programs."""

import os
from datetime import datetime
from pathlib import Path

import pytest

from evalkit.errors import InputError
from trainer.diagnosis.plog import LogLine, parse_time, rank_of, read_log
from trainer.diagnosis.spikes import diagnose_spikes


def lines(tmp_path: Path, text: str, name: str = "run.log") -> tuple[LogLine, ...]:
    path = tmp_path / name
    path.write_text(text)
    return read_log(path).lines


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("[ERROR] HCCL(7,python3):2025-07-23-03:47:57.070.463 [f.cc:1] x", (2025, 7, 23, 3, 47, 57, 70463)),
        ("[PID: 9] 2025-12-29-03:16:15.787.356 x (EI0006): y", (2025, 12, 29, 3, 16, 15, 787356)),
        ("[2022-01-19 13:09:13,305] [INFO] [x.py:1] y", (2022, 1, 19, 13, 9, 13, 305000)),
        ("2024-10-21 10:42:00,218 - x - ERROR - y", (2024, 10, 21, 10, 42, 0, 218000)),
        ("[ERROR] 2025-04-08-18:07:20 (PID:12, Device:1, RankID:1) ERR01100", (2025, 4, 8, 18, 7, 20, 0)),
    ],
)
def test_dated_lines(text, time):
    assert parse_time(text) == datetime(*time)


def test_what_isnt_a_date_has_no_time():
    assert parse_time("2025-13-40-25:61:61 x") is None and parse_time("step 3") is None


@pytest.mark.parametrize(
    ("line", "when"),
    [
        ("(EngineCore pid=3) ERROR 09-24 20:59:57 [core.py:790] failed", datetime(2025, 9, 24, 20, 59, 57)),
        ("[E924 20:50:12.123456789 socket.cpp:1] timed out", datetime(2025, 9, 24, 20, 50, 12, 123456)),
        ("[W816 05:41:45.632092587 socket.cpp:1] ERROR", datetime(2025, 8, 16, 5, 41, 45, 632092)),
        ("[E1116 05:41:45 x] y", datetime(2025, 11, 16, 5, 41, 45)),
    ],
)
def test_the_year_comes_from_the_nearest_dated_line(tmp_path, line, when):
    found = lines(tmp_path, f"{line}\n[PID: 9] 2025-09-24-20:59:48.119.066 Transport init error (EI0009)\n")
    assert (found[0].time, found[0].year_inferred) == (when, True)
    assert not found[1].year_inferred


def test_new_year_lies_between_two_lines(tmp_path):
    text = "[PID: 1] 2025-12-31-23:59:58.000.000 EI0006: a\nERROR 01-01 00:00:03 [x.py:1] b\n"
    assert lines(tmp_path, text)[1].time == datetime(2026, 1, 1, 0, 0, 3)


def test_without_any_dated_line_the_files_own_time_gives_the_year(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("ERROR 12-30 10:00:00 [x.py:1] b\n")
    written = datetime(2024, 1, 2).timestamp()
    os.utime(path, (written, written))
    assert read_log(path).lines[0].time == datetime(2023, 12, 30, 10)


def test_process_rank_and_code(tmp_path):
    (line,) = lines(
        tmp_path, "[rank1]: EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out\n"
    )
    assert (line.pid, line.rank, line.code, line.level) == (1292363, 1, "EI0006", "error")


@pytest.mark.parametrize(
    ("name", "rank"),
    [("worker_3.log", 3), ("rank-12.txt", 12), ("device_0/plog-1.log", 0), ("scheduler.log", None), ("a7.log", None)],
)  # fmt: skip
def test_the_rank_of_a_file(name, rank):
    assert rank_of(Path(name)) == rank


def test_lines_without_a_time_know_the_last_one(tmp_path):
    found = lines(tmp_path, "2025-01-01 10:00:00,000 - INFO - x\nTraceback:\nValueError: bad\n")
    assert found[-1].exception == "ValueError" and found[-1].time is None
    assert found[-1].when == datetime(2025, 1, 1, 10)


def test_hostile_bytes_are_read(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"\xff\xfe[ERROR] x\0y\n" + b"A" * 300_000 + b"\nValueError: z")
    assert [line.exception for line in read_log(path).lines] == [None, "ValueError"]


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError):
        read_log(tmp_path / "none.log")
    with pytest.raises(InputError):
        read_log(tmp_path)


def test_the_elastic_agents_prefix_has_no_bracket_and_no_year(tmp_path):
    path = tmp_path / "agent.log"
    path.write_text(
        "2026-02-13 12:07:00 INFO start\n"
        "E0213 12:07:20.086000 870572 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)\n"
        "some text E0213 12:07:21 in the middle is no prefix\n"
    )
    lines = read_log(path).lines
    assert [(str(line.time), line.level, line.year_inferred) for line in lines[1:]] == [
        ("2026-02-13 12:07:20.086000", "error", True)
    ]


@pytest.mark.parametrize("date", ["0001-01-01 00:00:00", "9999-12-31 23:59:59", "2026-02-31 10:00:00"])
def test_a_date_that_no_log_has_is_no_time(tmp_path, date):
    """Found by changing bytes of real logs at random: half an hour before the year 1 can't be reckoned."""
    assert parse_time(f"{date} step") is None
    path = tmp_path / "run.log"
    path.write_text(
        "".join(f"{date} iter {n}: loss {9.0 if n == 30 else 2.5}, time 3ms\n" for n in range(40))
    )
    assert diagnose_spikes([path], [path]).logs[0].steps[0].time is None
