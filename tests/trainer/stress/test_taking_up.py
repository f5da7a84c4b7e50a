"""A stress test that was itself ended half-way: what is kept, what is struck anew, and a real one under kill -9."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from evalkit.errors import InputError
from tests.trainer.killed import PROJECT
from tests.trainer.stress.test_stress import write_plan
from trainer.checkpoint import saved_steps, step_folder
from trainer.stress import taking_up
from trainer.stress.job import Attempt, Job
from trainer.stress.plan import Fault, load_stress
from trainer.stress.processes import end_leftovers
from trainer.stress.taking_up import enter, struck_anew, take_up


@pytest.fixture
def job(tmp_path):
    """A job of two ranks, broken off in its second attempt, with the checkpoints of steps 12, 14 and 16."""
    job = Job(tmp_path / "job", tmp_path / "config.yaml", 2, 60.0)
    first, second = Attempt(1, 50.0, 0), Attempt(2, 103.0, 9)
    first.down_s, first.down_because = 102.0, "the process of rank 1 is gone"
    second.resumed_after, second.ready_s, second.first_step_s = 8, 120.0, 125.0
    job.attempts += [first, second]
    job.keep()
    for step in (12, 14, 16):
        step_folder(job.folder / "run", step).mkdir(parents=True)
    return job


def fault(kind, step, number=1, ranks=(1,)):
    return Fault(number, kind, step, ranks, 1.0, 2)


def strike(job, one, at_s, **facts):
    (job.folder / "signs" / f"struck-{one.number}-{one.ranks[0]}").write_text(
        json.dumps({"at_s": at_s, **facts})
    )


def arrive(job, attempt, steps, late=None):
    for rank in (0, 1):
        entries = [
            {"step": step, "at_s": 110.0 + step + (late or {}).get((rank, step), 0.0)} for step in steps[rank]
        ]
        path = job.folder / "signs" / f"arrivals-{attempt}-{rank}.jsonl"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_a_fault_that_nobody_saw_the_end_of_is_struck_anew_from_before_it(job):
    kill = fault("kill", 15)
    strike(job, kill, 130.0)
    take_up(job, (kill,))
    assert job.struck(kill) is None and struck_anew(job) == 1
    assert saved_steps(job.folder / "run") == [12, 14]
    assert job.attempts[-1].interrupted and job.attempts[-1].down_s is None
    again = Job(job.folder, job.folder, 2, 60.0)
    assert again.attempts == job.attempts and not again.over


def test_a_recovery_that_was_seen_to_its_end_is_kept(job):
    kill = fault("kill", 9)
    strike(job, kill, 100.0)
    arrive(job, 2, {0: range(9, 17), 1: range(9, 17)})
    take_up(job, (kill,))
    assert job.struck(kill) is not None and struck_anew(job) == 0
    assert saved_steps(job.folder / "run") == [12, 14, 16]


def test_a_recovery_that_the_end_of_the_test_cut_short_is_struck_anew(job):
    kill = fault("kill", 9)
    strike(job, kill, 100.0)
    job.attempts[-1].first_step_s = None
    take_up(job, (kill,))
    assert struck_anew(job) == 1 and saved_steps(job.folder / "run") == []


def test_a_damaged_checkpoint_goes_with_its_fault(job):
    corrupt = fault("corrupt_checkpoint", 17, ranks=(0,))
    strike(job, corrupt, 130.0, damaged_step=16)
    take_up(job, (corrupt,))
    assert struck_anew(job) == 1 and saved_steps(job.folder / "run") == [12, 14]


def test_a_delay_that_the_detector_missed_stays_missed(job):
    """Only what the end of the test cut short may be tried again, never a failure."""
    slow = fault("slow_rank", 13)
    strike(job, slow, 130.0)
    arrive(job, 2, {0: range(9, 17), 1: range(9, 17)})
    take_up(job, (slow,))
    assert job.struck(slow) is not None and struck_anew(job) == 0


def test_a_delay_cut_short_is_struck_anew_where_the_detector_looks(job):
    slow = fault("slow_rank", 15)
    strike(job, slow, 130.0)
    arrive(job, 2, {0: range(9, 16), 1: range(9, 15)})
    take_up(job, (slow,))
    assert struck_anew(job) == 1 and saved_steps(job.folder / "run") == [12]


def test_a_delay_to_come_isnt_within_the_first_two_steps_that_nobody_looks_at(job):
    take_up(job, (fault("slow_rank", 18),))
    assert struck_anew(job) == 0 and saved_steps(job.folder / "run") == [12, 14]


def test_a_job_that_is_over_is_left_alone(job):
    job.attempts[-1].code, job.attempts[-1].down_s = 0, 140.0
    kill = fault("kill", 15)
    strike(job, kill, 130.0)
    take_up(job, (kill,))
    assert job.struck(kill) is not None and len(saved_steps(job.folder / "run")) == 3


def test_a_folder_goes_on_with_its_own_test_only(tmp_path, monkeypatch):
    path = write_plan(tmp_path, "kill: 1")
    out = tmp_path / "out"
    out.mkdir()
    enter(out, load_stress(path))
    enter(out, load_stress(path))
    path.write_text(path.read_text() + "seed: 3\n")
    with pytest.raises(InputError, match="holds a test of another plan"):
        enter(out, load_stress(path))
    path.write_text(path.read_text().replace("seed: 3\n", ""))
    with (tmp_path / "data/train.jsonl").open("a") as stream:
        stream.write('{"id": "more", "text": "more"}\n')
    with pytest.raises(InputError, match="or data"):
        enter(out, load_stress(path))
    monkeypatch.setattr(taking_up, "_BOOT", tmp_path / "none")
    other = tmp_path / "other"
    other.mkdir()
    enter(other, load_stress(path))
    monkeypatch.undo()
    with pytest.raises(InputError, match="the machine was started anew"):
        enter(other, load_stress(path))


@pytest.mark.parametrize(("name", "text"), [("notes.txt", "mine"), ("test.json", "[]"), ("test.json", "{")])
def test_a_folder_that_holds_something_else_is_refused(tmp_path, name, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text(text)
    with pytest.raises(InputError, match="stress test"):
        enter(tmp_path / "out", load_stress(write_plan(tmp_path, "kill: 1")))


def test_what_a_killed_supervisor_left_is_ended_and_nothing_else(tmp_path):
    """Seen in a real run: msrun's tails of the workers' logs outlived it."""
    (tmp_path / "logs-1").mkdir()
    files = [tmp_path / "logs-1/worker_0.log", tmp_path / "notes.txt"]
    for path in files:
        path.touch()
    tails = [subprocess.Popen(["tail", "-f", str(path)]) for path in files]
    try:
        end_leftovers(tmp_path)
        assert tails[0].wait(10) == -signal.SIGKILL
        assert tails[1].poll() is None
    finally:
        for process in tails:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_test_killed_by_9_goes_on_and_finds_what_an_unbroken_one_does(tmp_path):
    path, out = write_plan(tmp_path, "kill: 1, slow_rank: 1", steps=30), tmp_path / "out"
    command = [sys.executable, "-m", "trainer", "stress", str(path), "--out", str(out), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}

    def kill_after(sign):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not list(out.glob(sign)):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()

    kill_after("reference/run/checkpoints/step-4")
    kill_after("disturbed/signs/struck-1-*")
    kept = (out / "reference/job.json").stat().st_mtime_ns
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["as_promised"] and report["times_taken_up"] == 1 and report["struck_anew"] == 1
    assert (out / "reference/job.json").stat().st_mtime_ns == kept
    assert all(check["holds"] for check in report["checks"])
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0 and json.loads(again.stdout)["faults"] == report["faults"]
