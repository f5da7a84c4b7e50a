"""The first failure of a distributed job, and what its logs leave open."""

import gzip
import os
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

import pytest

from evalkit.errors import InputError
from trainer.diagnosis.distributed import _median_without, diagnose_distributed

START = datetime(2026, 3, 1, 8, 0, 0)


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%d-%H:%M:%S.%f")[:-3] + ".000"


def timeout(seconds: float, pid: int = 1) -> str:
    return f"[PID: {pid}] {at(seconds)} Get_Socket_Timeout(EI0006): Getting socket times out. Reason: 1. The remote"


def info(seconds: float) -> str:
    return f"[INFO] ME({1},python):{at(seconds)} [x.cc:1] step"


def write(folder: Path, **logs: list[str]) -> Path:
    for name, lines in logs.items():
        (folder / f"{name}.log").write_text("\n".join(lines) + "\n")
    return folder


def rules(folder: Path) -> list[str]:
    return [finding.rule for finding in diagnose_distributed(folder).findings]


def test_an_exception_before_the_timeouts_is_the_cause(tmp_path):
    folder = write(
        tmp_path,
        worker_0=[info(0), timeout(130)],
        worker_1=[
            info(0),
            info(9),
            "Traceback (most recent call last):",
            "ValueError: no such file: data.txt",
        ],
    )
    report = diagnose_distributed(folder)
    first = report.findings[0]
    assert (first.rule, first.value("process")) == ("process_raised", "rank 1")
    assert first.value("seconds_until_the_timeout") == 121.0
    assert first.rivals[0].rule == "socket_timeout"


def test_an_exception_without_any_time_goes_before_a_symptom(tmp_path):
    write(tmp_path, worker_0=[timeout(130)], worker_1=["ValueError: x"])
    assert rules(tmp_path)[0] == "process_raised"


def test_timeouts_everywhere_within_the_limit_point_to_the_links(tmp_path):
    write(tmp_path, worker_0=[info(0), timeout(120)], worker_1=[info(5), timeout(124, 2)])
    assert rules(tmp_path) == ["socket_timeout", "link_or_missing_peer"]


def test_a_late_start_is_measured(tmp_path):
    write(tmp_path, worker_0=[info(0), timeout(120)], worker_1=[info(200), timeout(330, 2)])
    report = diagnose_distributed(tmp_path)
    late = report.findings[1]
    assert (late.rule, late.value("latest"), late.value("spread_s")) == ("late_start", "rank 1", 210.0)


def test_a_silent_rank_is_named_and_a_missing_one_too(tmp_path):
    lines = [info(0), "RANK_SIZE=4 " + info(1), timeout(121)]
    write(tmp_path, worker_0=lines, worker_1=[info(0), info(119)], worker_2=[info(0), timeout(122, 3)])
    report = diagnose_distributed(tmp_path)
    assert report.missing_ranks == (3,)
    silent = next(finding for finding in report.findings if finding.rule == "silent_ranks")
    assert silent.value("ranks") == "1"


def test_a_hang_leaves_no_error_but_a_log_that_stops(tmp_path):
    logs = {f"worker_{rank}": [info(0), info(3600)] for rank in range(3)}
    write(tmp_path, **logs, worker_3=[info(0), info(1200)])
    (finding,) = diagnose_distributed(tmp_path).findings
    assert (finding.rule, finding.value("rank"), finding.value("gap_s")) == ("log_stops_early", 3, 2400.0)


def test_nothing_wrong_is_said(tmp_path):
    write(tmp_path, worker_0=[info(0)], worker_1=[info(1)])
    assert rules(tmp_path) == ["nothing_found"]


def test_only_echoes_say_that_the_cause_is_elsewhere(tmp_path):
    write(tmp_path, scheduler=[f"[ERROR] ME(1,python):{at(3)} Distributed job exited with exception"])
    assert rules(tmp_path) == ["call_trace"]


def test_other_files_are_skipped_with_a_reason(tmp_path):
    write(tmp_path, worker_0=[info(0)])
    (tmp_path / "core.log").write_bytes(b"\0" * 10)
    (tmp_path / "config.json").write_text("{}")
    report = diagnose_distributed(tmp_path)
    assert {path.name for path, _ in report.skipped} == {"core.log", "config.json"}


def test_bad_folders_are_input_errors(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError):
            diagnose_distributed(folder)


def test_a_rank_that_raised_under_msrun(tmp_path):
    """Lines as MindSpore 2.10 writes them: the scheduler misses the heartbeat 30 s after rank 1 raised."""
    write(
        tmp_path,
        scheduler=[
            f"[WARNING] DISTRIBUTED(3,7f43287dfb80,python):{at(0)} [x.cc:91] Finalize] Cluster currently has 2 alive nodes.",
            f"[ERROR] DISTRIBUTED(3,7f42fbb9e6c0,python):{at(40.4)} [x.cc:548] UpdateTopoState] The node: 1 is timed out.",
            "RuntimeError: The total number of timed out node is 1. Timed out node list is: [const vector]{1}",
        ],
        worker_0=[f"[WARNING] ME(1,7f75bd419b80,python):{at(9)} [x.cc:1] Create] y"],
        worker_1=[
            f"[WARNING] ME(2,7ff0415d7b80,python):{at(10)} [x.cc:1] Create] y",
            "Traceback (most recent call last):",
            "ValueError: no such file: shard-1.mindrecord",
            f"[INFO] DISTRIBUTED(2,7ff0067fc6c0,python):{at(10.1)} [x.cc:1] Start] Event base dispatch success!",
        ],
        launcher=[
            f"[ERROR] ME(9:140192249756544,MainProcess):{at(44)} [x.py:365] Worker process 2 exit with exception. Error code: 1.",
            "RuntimeError: Distributed job exited with exception. Please check logs in directory: log.",
        ],
    )
    first = diagnose_distributed(tmp_path).findings[0]
    assert (first.rule, first.value("process"), first.value("later_errors")) == (
        "process_raised",
        "rank 1",
        1,
    )
    assert first.value("seconds_until_the_timeout") == 30.4 and first.rivals[0].rule == "worker_lost"


UNREADABLE = {
    "compressed": gzip.compress(timeout(9).encode()),
    "UTF-16": timeout(9).encode("utf-16"),
    "text in UTF-16": timeout(9).encode("utf-16-le"),
    "empty": b"",
}


@pytest.mark.parametrize("why", UNREADABLE)
def test_a_log_that_cannot_be_read_is_named_and_isnt_no_error(tmp_path, why):
    write(tmp_path, rank_0=[info(0)])
    bad = tmp_path / "rank_1.log"
    bad.write_bytes(UNREADABLE[why])
    report = diagnose_distributed(tmp_path)
    (finding,) = report.findings
    assert (finding.rule, finding.severity, finding.value("ranks")) == ("logs_not_read", "warning", "1")
    assert why in finding.value("file") and str(bad) in [item.where for item in finding.evidence]
    assert report.skipped[0][0] == bad and report.ranks == (0,)


@pytest.mark.parametrize("why", UNREADABLE)
@pytest.mark.parametrize("alone", [True, False])
def test_without_any_log_that_can_be_read_there_is_no_answer(tmp_path, why, alone):
    bad = tmp_path / "rank_1.log"
    bad.write_bytes(UNREADABLE[why])
    with pytest.raises(InputError, match=rf"rank_1\.log: .*{why}"):
        diagnose_distributed(bad if alone else tmp_path)


def test_one_unreadable_file_does_not_stop_the_rest(tmp_path):
    write(tmp_path, rank_0=[info(0), timeout(130)], rank_1=[info(0)])
    os.mkfifo(tmp_path / "rank_2.log")
    (tmp_path / "rank_3.log").symlink_to(tmp_path / "gone")
    found = {item.rule: item for item in diagnose_distributed(tmp_path).findings}
    assert "socket_timeout" in found and found["logs_not_read"].value("ranks") == "2, 3"


def test_an_empty_stderr_is_as_it_should_be(tmp_path):
    write(tmp_path, rank_0=[info(0)])
    (tmp_path / "rank_0.err").touch()
    assert rules(tmp_path) == ["nothing_found"]


def test_an_absurd_rank_is_told_and_not_believed(tmp_path):
    write(
        tmp_path,
        rank_0=[info(0)],
        rank_999999999=[info(0)],
        rank_1=[f"{info(1)} [rank70000] RANK_SIZE=900000"],
    )
    report = diagnose_distributed(tmp_path)
    assert (report.ranks, report.missing_ranks) == ((0, 1), ())
    (finding,) = [item for item in report.findings if item.rule == "rank_beyond_limit"]
    assert [item.where for item in finding.evidence if item.name == "rank"] == [
        str(tmp_path / "rank_1.log"),
        str(tmp_path / "rank_999999999.log"),
    ]


@pytest.mark.parametrize(
    "numbers", [[1.0, 2.0], [3.0, 1.0, 1.0], [5.0, 2.0, 9.0, 2.0], [1.0, 2.0, 3.0, 4.0, 5.0]]
)
def test_the_median_of_the_others(numbers):
    for at, one in enumerate(numbers):
        assert _median_without(sorted(numbers), one) == median(numbers[:at] + numbers[at + 1 :])
