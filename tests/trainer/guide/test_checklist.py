"""The guided plan: evidence counts only while neither it nor what it came from has changed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evalkit.console import run as run_command
from evalkit.errors import InputError
from trainer.cli import cli
from trainer.guide.checklist import STEPS, Checklist
from trainer.run_log import claimed

PLAN = """\
version: 1
name: first
baseline: {skip: "done by hand last week"}
memory: {run: "trainer memory model.yaml --json", inputs: [model.yaml]}
bottleneck: {skip: "one device only"}
"""
MODEL = """\
version: 1
model: {hidden_size: 64, layers: 2, heads: 4, vocab_size: 320, intermediate_size: 160}
training: {sequence_length: 64}
"""


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "model.yaml").write_text(MODEL)
    return tmp_path / "plan.yaml"


def states(plan):
    checklist = Checklist(plan, plan.parent / "out")
    return {step: checklist.state(step)[0] for step in STEPS}


def test_a_step_is_done_then_stale_when_its_input_changes(plan):
    checklist = Checklist(plan, plan.parent / "out")
    assert states(plan)["memory"] == "open" and states(plan)["baseline"] == "skipped"
    checklist.run("memory")
    said = (plan.parent / "out/memory/run-1/said.txt").read_text()
    assert checklist.state("memory")[0] == "done", said
    assert states(plan)["memory"] == "done"  # from the disk
    (plan.parent / "model.yaml").write_text(MODEL.replace("layers: 2", "layers: 3"))
    assert states(plan)["memory"] == "stale"
    checklist.run("memory")
    assert states(plan)["memory"] == "done"
    (plan.parent / "out/memory/run-2/said.txt").write_text("it fits, believe me")
    assert Checklist(plan, plan.parent / "out").state("memory") == (
        "stale",
        "evidence memory/run-2/said.txt was changed",
    )


def test_a_changed_command_is_stale_and_a_failing_one_is_told(plan):
    Checklist(plan, plan.parent / "out").run("memory")
    plan.write_text(PLAN.replace("model.yaml --json", "nothing.yaml --json"))
    assert states(plan)["memory"] == "stale"
    Checklist(plan, plan.parent / "out").run("memory")
    assert states(plan)["memory"] == "stopped"


def test_the_command_shows_all_seven(plan, capsys, monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["trainer", "plan", str(plan), "--out", str(plan.parent / "out"), "--check", "--json"]
    )
    with pytest.raises(SystemExit) as ended:
        run_command(cli)
    assert ended.value.code == 3
    assert list(json.loads(capsys.readouterr().out)["steps"]) == list(STEPS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"trainer memory', '"rm memory', "a command of trainer or evalkit"),
        ("name: first", "name: first\nstrategy: {}", "exactly one of run and skip"),
        ("trainer memory model", "trainer memory 'model", "memory.run: No closing quotation"),
        ("--json", "--out {outt}", "{outt}: only {out} stands for something"),
        ("--json", "--help", "--help and --version measure nothing"),
    ],
)
def test_a_broken_plan_is_refused(plan, old, new, message):
    plan.write_text(PLAN.replace(old, new))
    with pytest.raises(InputError, match=message):
        Checklist(plan, plan.parent / "out")


def test_a_step_that_isnt_done_says_why_and_where(plan):
    plan.write_text(PLAN.replace("model.yaml --json", "nothing.yaml --json"))
    checklist = Checklist(plan, plan.parent / "out")
    checklist.run("memory")
    state, why = checklist.state("memory")
    assert state == "stopped" and "run-1/said.txt: nothing.yaml: no such file" in why
    assert checklist.state("stress") == (
        "open",
        "not in plan.yaml; give it a run, or a skip with the reason",
    )


def test_a_first_step_that_is_broken_off_can_be_run_again(plan, monkeypatch):
    def broken_off(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("trainer.guide.checklist._run", broken_off)
        with pytest.raises(KeyboardInterrupt):
            Checklist(plan, plan.parent / "out").run("memory")
    again = Checklist(plan, plan.parent / "out")
    assert again.state("memory")[0] == "open"
    again.run("memory")
    assert states(plan)["memory"] == "done"


def test_an_interruption_lets_the_command_tidy_up(tmp_path):
    script = (
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        "def tidy(number, frame):\n"
        "    time.sleep(0.5)\n"
        "    Path('tidy').touch()\n"
        "    sys.exit(4)\n"
        "signal.signal(signal.SIGTERM, tidy)\n"
        "Path('ready').touch()\n"
        "time.sleep(60)\n"
    )

    supervisor = (
        "import sys\n"
        "from pathlib import Path\n"
        "from trainer.guide.checklist import _run\n"
        "with open('said.txt', 'wb') as said:\n"
        "    _run([sys.executable, '-c', sys.argv[1]], Path('.'), said)\n"
    )
    # A process of its own is interrupted, never the one that runs the tests.
    process = subprocess.Popen(
        [sys.executable, "-c", supervisor, script], cwd=tmp_path, stderr=subprocess.PIPE
    )
    stat = Path(f"/proc/{process.pid}/stat")
    # Until it sleeps: it waits for the command then, and isn't still about to start it.
    while process.poll() is None and not ((tmp_path / "ready").exists() and ") S " in stat.read_text()):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert (tmp_path / "tidy").exists()


def test_a_second_one_in_the_same_folder_is_refused(plan, capsys, monkeypatch):
    """Both would run every step, and the later end would forget what the other one did."""
    out = plan.parent / "out"
    monkeypatch.setattr("sys.argv", ["trainer", "plan", str(plan), "--out", str(out)])
    with claimed(out):
        with pytest.raises(SystemExit) as ended:
            run_command(cli)
        assert ended.value.code == 2 and not list(out.iterdir())
        assert "another run works in this folder" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        run_command(cli)
    assert ended.value.code == 3 and states(plan)["memory"] == "done"
