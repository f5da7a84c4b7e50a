"""kill -9 at random times, and Ctrl-C: a run always goes on, and ends with the same weights."""

import random
import signal
import time

import pytest

from tests.trainer.killed import kill_at_random, lines_in, start, write_config
from tests.trainer.test_resume import assert_same_end
from trainer.checkpoint import saved_steps


def kill_repeatedly(folder, times, steps):
    config = write_config(folder / "data", steps)
    out, reference = folder / "run", folder / "reference"
    _, problems = start(config, reference).communicate()
    assert saved_steps(reference)[-1] == steps, problems
    generator = random.Random(times)
    codes = [kill_at_random(config, out, generator) for _ in range(times)]
    assert codes.count(-signal.SIGKILL) >= times * 0.8, codes  # few came too late
    process = start(config, out, "--resume")
    _, said = process.communicate()
    assert process.returncode == 0 and "passed over" not in said, said
    assert_same_end(out, reference, steps)
    assert not list((out / "checkpoints").glob(".*"))


def test_kill_9_at_5_random_times(tmp_path):
    kill_repeatedly(tmp_path, 5, 60)


@pytest.mark.slow
def test_kill_9_at_50_random_times(tmp_path):
    kill_repeatedly(tmp_path, 50, 500)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_says_how_to_go_on(tmp_path, number):
    """Ctrl-C, or the end of a batch job: exit 4, although MindSpore answers SIGINT itself by ending the process."""
    config, out = write_config(tmp_path / "data", 100_000), tmp_path / "run"
    process = start(config, out)
    while lines_in(out) < 3:
        time.sleep(0.01)
        assert process.poll() is None, process.communicate()
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    last = said.splitlines()[-1]
    assert process.returncode == 4, said
    assert last.startswith("error: interrupted; the last checkpoint is step-")
    assert last.endswith(f"go on with `trainer train {config} --out {out} --resume`")
    assert "Traceback" not in said
