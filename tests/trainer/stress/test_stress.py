"""Faults drawn, delays found, and a real job under faults."""

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise

import pytest

from evalkit.errors import InputError
from tests.trainer.killed import PROJECT, write_config
from trainer.stress.delays import find_delays
from trainer.stress.plan import load_stress


def write_plan(folder, faults, steps=60, workers=2, more=""):
    config = write_config(folder / "data", steps)
    text = (
        config.read_text()
        .replace("dropout: 0.1", "dropout: 0.0")
        .replace("hidden_size: 8", "hidden_size: 32")
    )
    text = text.replace("every: 1, keep_last: 2", "every: 2, keep_last: 3").replace(
        "accumulation: 2", "accumulation: 1"
    )
    config.write_text(f"{text}parallel: {{data: {workers}}}\n")
    (folder / "stress.yaml").write_text(f"version: 1\nconfig: data/config.yaml\nfaults: {{{faults}}}\n{more}")
    return folder / "stress.yaml"


def test_faults_are_drawn_by_the_seed_and_dont_overlap(tmp_path):
    path = write_plan(
        tmp_path, "kill: 2, slow_rank: 2, corrupt_checkpoint: 1, full_disk: 1, delay_checkpoint: 1, hang: 1"
    )
    faults = load_stress(path).faults
    assert faults == load_stress(path).faults
    assert sorted(fault.kind for fault in faults).count("kill") == 2 and len(faults) == 8
    steps = [fault.step for fault in faults]
    assert all(later - step >= 2 for step, later in pairwise(steps)) and steps[-1] < 60
    assert all(fault.ranks == (0,) for fault in faults if fault.kind not in ("kill", "slow_rank", "hang"))


def test_the_killed_share_is_rounded_up(tmp_path):
    stress = load_stress(write_plan(tmp_path, "kill: 2", workers=3, more="kill_share: 0.34\n"))
    assert all(len(fault.ranks) == 2 for fault in stress.faults)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ("kill: 30", "need a run of at least"),
        ("kill: 0", "all counts are 0"),
        ("burn: 1", "unknown key"),
        ("kill: true", r"stress.yaml:3: faults.kill: Input should be a valid integer \(got [Tt]rue\)"),
        ('kill: "2"', "faults.kill: Input should be a valid integer"),
    ],
)
def test_a_plan_that_cant_be_is_refused(tmp_path, faults, message):
    with pytest.raises(InputError, match=message):
        load_stress(write_plan(tmp_path, faults))


def test_the_late_rank_is_named_and_an_even_pace_is_not():
    even = {rank: {step: step + 0.01 * rank for step in range(1, 30)} for rank in range(3)}
    assert find_delays(even) == []
    even[2][12] += 1.5
    (found,) = find_delays(even)
    assert (found.step, found.rank) == (12, 2) and found.late_s == pytest.approx(1.52)
    assert find_delays({}) == [] and find_delays({0: {1: 0.0}}) == []


def test_a_rank_that_always_writes_hides_no_other_ranks_delay():
    """Seen in a real run: rank 0 comes 0.16 s late to each step, which must not raise what rank 1 is measured by."""
    arrivals = {
        0: {step: step + 0.16 for step in range(1, 30)},
        1: {step: float(step) for step in range(1, 30)},
    }
    arrivals[1][6] += 1.59
    assert [(item.step, item.rank) for item in find_delays(arrivals)] == [(6, 1)]


def test_one_worker_is_measured_against_its_own_pace():
    steps = {step: 0.1 * step + (2.0 if step >= 9 else 0.0) for step in range(1, 20)}
    assert [(item.step, item.rank) for item in find_delays({0: steps})] == [(9, 0)]


@pytest.mark.slow
def test_a_job_of_two_workers_comes_back_and_ends_as_if_nothing_had_been(tmp_path):
    faults = "kill: 1, corrupt_checkpoint: 1, slow_rank: 1, hang: 1"
    path = write_plan(tmp_path, faults, steps=36, more="stall_timeout_s: 90\n")
    command = [sys.executable, "-m", "trainer", "stress", str(path), "--out", str(tmp_path / "out"), "--json"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(PROJECT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["as_promised"] and len(report["faults"]) == 4 and len(report["attempts"]) == 4
    (hung,) = [item for item in report["faults"] if item["fault"]["kind"] == "hang"]
    # Nobody died: it takes the other worker's collective to give up (30 s), or the stall timeout.
    assert 10 < hung["detection_s"] < 100
    assert all(check["holds"] for check in report["checks"])


def test_a_worker_doesnt_outlive_a_killed_supervisor():
    supervisor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    script = "import sys, time\nfrom trainer.stress.worker import end_with\nend_with(int(sys.argv[1]))\nprint('watching', flush=True)\ntime.sleep(60)\n"
    worker = subprocess.Popen([sys.executable, "-c", script, str(supervisor.pid)], stdout=subprocess.PIPE)
    try:
        assert worker.stdout is not None and worker.stdout.readline() == b"watching\n"
        assert worker.poll() is None
        supervisor.kill()
        supervisor.wait()
        assert worker.wait(30) == -signal.SIGKILL
    finally:
        for process in (supervisor, worker):
            if process.poll() is None:
                process.kill()
                process.wait()
