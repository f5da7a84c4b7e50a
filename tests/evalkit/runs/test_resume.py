"""Runs broken off anywhere: resumed, their results equal those of an uninterrupted run to the bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evalkit.cache.store import ResultCache, cache_file, clear_cache
from evalkit.console import SilentProgress
from evalkit.errors import IncompleteError, InputError
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.orchestrate import score_file
from evalkit.runs.plan import read_plan
from evalkit.runs.resume import resume_run
from evalkit.runs.verify import verify
from tests.support.interrupted import Interrupted, assert_equal_runs, journal, torn_copy


@pytest.fixture
def broken_off(interrupted: Interrupted, tmp_path: Path) -> RunFolder:
    """A run that was killed in the middle of its texts."""
    shutil.copytree(interrupted.journals.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    samples = journal(folder, "samples")
    samples.write_bytes(samples.read_bytes()[: samples.stat().st_size // 2])
    journal(folder, "turns").unlink()
    return folder


def resumed(folder: RunFolder) -> RunFolder:
    outcome = resume_run(folder, SilentProgress())
    assert outcome.verdict_text == "PASS"
    assert verify(folder) == []
    return outcome.folder


def check_torn_runs(interrupted: Interrupted, tmp_path: Path, seed: int, times: int) -> None:
    place = random.Random(seed)
    for number in range(times):
        if number % 2 == 0:
            # Every other run is finished by the model alone, the others also from what those left in the cache.
            clear_cache(cache_file())
        assert_equal_runs(
            resumed(torn_copy(interrupted.journals, tmp_path / f"run{number}", place)), interrupted.reference
        )


def test_killed_at_5_random_bytes_of_the_journal(interrupted: Interrupted, tmp_path: Path) -> None:
    check_torn_runs(interrupted, tmp_path, seed=1, times=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_killed_at_100_random_bytes_of_the_journal(
    interrupted: Interrupted, tmp_path: Path, seed: int
) -> None:
    check_torn_runs(interrupted, tmp_path, seed, times=25)


def evalkit(*words: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "evalkit", *[str(word) for word in words]]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def started(interrupted: Interrupted, out: Path, records: int) -> "subprocess.Popen[str]":
    """`evalkit run` in a process of its own, at least so many lines of evidence under way."""
    process = evalkit(
        "run",
        interrupted.scenario,
        "--model",
        interrupted.bundle,
        "--out",
        out,
        "--sandbox",
        interrupted.sandbox,
        "--tokens",
    )
    path = journal(RunFolder(out), "samples")
    deadline = time.monotonic() + 120
    while not (path.is_file() and path.read_bytes().count(b"\n") >= records):
        assert process.poll() is None or (out / "seal.json").exists(), process.communicate()[1]
        assert time.monotonic() < deadline
        if process.poll() is not None:
            break
        time.sleep(0.002)
    return process


@pytest.mark.parametrize("records", [1, 12, 40])
def test_a_process_that_was_really_killed(interrupted: Interrupted, tmp_path: Path, records: int) -> None:
    process = started(interrupted, tmp_path / "run", records)
    process.kill()
    process.communicate()
    assert_equal_runs(resumed(RunFolder(tmp_path / "run")), interrupted.reference)


KILLED = """
import os, signal, sys
from evalkit.cache import store
written, (number, moment) = 0, (int(sys.argv[1]), sys.argv[2])

def write(self, action):
    global written
    written += 1
    self._database.execute("BEGIN IMMEDIATE")
    action()
    if moment == "committed":
        self._database.execute("COMMIT")
    if written == number:
        os.kill(os.getpid(), signal.SIGKILL)
    if moment != "committed":
        self._database.execute("COMMIT")

with store.ResultCache(store.cache_file()):
    store.ResultCache._write = write
sys.argv[1:] = sys.argv[3:]
from evalkit.cli import main
main()
"""


@pytest.mark.parametrize("number", [1, 6])
@pytest.mark.parametrize("moment", ["committed", "uncommitted"])
def test_a_process_killed_while_it_writes_the_cache(
    interrupted: Interrupted, tmp_path: Path, number: int, moment: str
) -> None:
    out = tmp_path / "run"
    words = ["run", interrupted.scenario, "--model", interrupted.bundle, "--out", out, "--tokens"]
    words += ["--sandbox", interrupted.sandbox]
    command = [sys.executable, "-c", KILLED, str(number), moment, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with ResultCache(cache_file()) as cache:
        assert sum(share.entries for share in cache.shares()) == number - (moment == "uncommitted")
    folder = resumed(RunFolder(out))
    assert_equal_runs(folder, interrupted.reference)
    with ResultCache(cache_file()) as cache:
        assert cache.damaged == 0
    cached = [sample for sample in read_evidence(folder, "candidate").samples if sample.from_cache]
    # The batch that was kept but not yet in the journal is read again: this very run computed it.
    assert all(sample.cache_runs == [read_plan(folder)["run_id"]] for sample in cached)
    assert bool(cached) == (moment == "committed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_asked_to_stop(
    interrupted: Interrupted, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "run"
    process = started(interrupted, out, 1)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("the run was over before the signal came")
    assert process.returncode == 4, stderr
    assert stdout == ""
    assert [line for line in stderr.splitlines() if line.startswith("error: ")] == [
        f"error: interrupted; what is done is kept, finish it with `evalkit resume {out}`"
    ]
    done = evalkit("resume", out, "--json")
    stdout, stderr = done.communicate(timeout=120)
    assert done.returncode == 0, stderr
    assert json.loads(stdout)["verdict"] == "PASS"
    assert_equal_runs(RunFolder(out), interrupted.reference)


def test_what_is_done_is_not_scored_again(
    interrupted: Interrupted, broken_off: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalkit.backends.mindir import MindirBackend

    scored: list[int] = []
    original = MindirBackend.score

    def counting(self: MindirBackend, *arrays: object) -> object:
        scored.append(1)
        return original(self, *arrays)  # type: ignore[arg-type]

    monkeypatch.setattr(MindirBackend, "score", counting)
    assert_equal_runs(resumed(broken_off), interrupted.reference)
    partly = len(scored)
    scored.clear()
    shutil.rmtree(broken_off.path)
    shutil.copytree(interrupted.journals.path, broken_off.path)
    assert_equal_runs(resumed(broken_off), interrupted.reference)
    assert scored == []
    assert partly > 0


def test_windows_of_a_long_text_are_kept(interrupted: Interrupted, broken_off: RunFolder) -> None:
    """Only window lines of the longest text are left: they are used, and the bits are those of the whole run."""
    samples = journal(broken_off, "samples")
    lines = journal(interrupted.journals, "samples").read_bytes().splitlines(keepends=True)
    windows = [line for line in lines if json.loads(line)["record"] == "window"]
    assert len(windows) >= 4
    samples.write_bytes(b"".join(windows[:-1]))
    assert_equal_runs(resumed(broken_off), interrupted.reference)


def test_a_finished_run_is_judged_and_reported_again(interrupted: Interrupted, tmp_path: Path) -> None:
    shutil.copytree(interrupted.reference.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    before = folder.verdict.read_bytes()
    folder.verdict.unlink()
    shutil.rmtree(folder.verdicts)
    shutil.rmtree(folder.reports)
    resumed(folder)
    assert folder.verdict.read_bytes() == before
    assert (folder.reports / "report.html").is_file()


def test_a_finished_run_whose_seal_is_broken_is_refused(interrupted: Interrupted, tmp_path: Path) -> None:
    shutil.copytree(interrupted.reference.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.results.write_bytes(folder.results.read_bytes().replace(b"perplexity", b"Perplexity"))
    with pytest.raises(InputError, match=r"seal is broken: results\.json"):
        resume_run(folder, SilentProgress())


def test_half_written_files_of_a_kill_are_removed(interrupted: Interrupted, broken_off: RunFolder) -> None:
    (broken_off.evidence("candidate") / ".samples.parquet.x1y2z3").write_bytes(b"PAR1")
    (broken_off.evidence("candidate") / ".tokens.parquet.partial").write_bytes(b"PAR1")
    resumed(broken_off)


def test_a_broken_line_in_the_middle_is_named(broken_off: RunFolder) -> None:
    samples = journal(broken_off, "samples")
    lines = samples.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:20] + b"\n"
    samples.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=r"samples\.journal\.jsonl:3: broken line"):
        resume_run(broken_off, SilentProgress())


def test_a_line_of_another_version_is_named(broken_off: RunFolder) -> None:
    samples = journal(broken_off, "samples")
    lines = samples.read_bytes().splitlines(keepends=True)
    lines[1] = b'{"record": "sample", "colour": "red"}\n'
    samples.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=r"samples\.journal\.jsonl:2: not a record"):
        resume_run(broken_off, SilentProgress())


def test_two_processes_cannot_work_on_one_run(broken_off: RunFolder) -> None:
    fcntl = pytest.importorskip("fcntl")
    with broken_off.plan.open("rb") as plan:
        fcntl.flock(plan, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process works on this run"):
            resume_run(broken_off, SilentProgress())


def test_a_run_of_score_is_resumed_too(
    interrupted: Interrupted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    data = interrupted.scenario.with_name("texts.jsonl")
    whole = score_file(interrupted.bundle, data, tmp_path / "whole", None, False, SilentProgress())
    with monkeypatch.context() as patch:
        patch.setattr("evalkit.runs.measure.write_evidence", interrupt)
        with pytest.raises(IncompleteError, match="evalkit resume"):
            score_file(interrupted.bundle, data, tmp_path / "run", None, False, SilentProgress())
        with pytest.raises(IncompleteError, match="--out"):
            score_file(interrupted.bundle, data, None, None, False, SilentProgress())
    monkeypatch.chdir(os.sep)
    outcome = resume_run(RunFolder(tmp_path / "run"), SilentProgress())
    assert [metric.value for metric in outcome.results.metrics] == [metric.value for metric in whole.metrics]
