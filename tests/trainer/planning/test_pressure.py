"""The pressure test: the search by a made-up memory, and one real process."""

import json
import os
import subprocess
import sys

import pytest

from evalkit.errors import EvalkitError, InputError
from trainer.planning.pressure import press, search
from trainer.planning.pressure_trial import Trial, run_trial

POPEN = subprocess.Popen
OPTIONS = ("--pressure", "batch", "--budget-mib", "900", "--json")
PLAN = """\
version: 1
name: small
model: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64, vocab_size: 512, max_length: 64, tied_head: true}
training: {sequence_length: 32, gradient_type: full_fp32, flash_attention: false, fused_activation: false}
"""


def made_up(base, per_unit, budget):
    tried = []

    def run(value):
        tried.append(value)
        peak = base + per_unit * value
        return Trial(value, peak <= budget, peak, 0.0, "")

    return run, tried


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 12, 100, 777, 4096])
def test_the_search_finds_the_largest_to_a_twentieth_in_few_trials(limit):
    run, tried = made_up(600, 70, 600 + 70 * limit + 35)
    trials = search(run, step=1, most=4096, budget_mib=600 + 70 * limit + 35)
    best = max(trial.value for trial in trials if trial.fits)
    assert best <= limit and limit - best <= max(1, 0.05 * limit)
    assert len(tried) <= 12 and len(set(tried)) == len(tried)


def test_the_search_never_asks_for_more_than_four_times_what_fitted():
    run, tried = made_up(0, 1, 3000)
    search(run, step=1, most=100_000, budget_mib=3000)
    fitting = 1
    for value in tried:
        assert value <= 4 * fitting
        if value <= 3000:
            fitting = max(fitting, value)


def test_a_memory_that_is_no_line_is_found_too():
    def run(value):
        peak = 100 + 0.02 * value**2
        return Trial(value, peak <= 5000, peak, 0.0, "")

    trials = search(run, step=16, most=4096, budget_mib=5000)
    best = max(trial.value for trial in trials if trial.fits)
    assert all(trial.value % 16 == 0 for trial in trials) and 470 <= best <= 494


def test_not_even_the_smallest():
    run, tried = made_up(600, 70, 100)
    assert [trial.fits for trial in search(run, step=1, most=10, budget_mib=100)] == [False]
    assert tried == [1]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            PLAN.replace("sequence_length: 32", "sequence_length: 32, strategy: {data: 2}"),
            "data, model and pipeline 1",
        ),
        (PLAN.replace("tied_head: true", "qkv_bias: true"), "aren't computed here"),
        (
            PLAN.replace("sequence_length: 32", "sequence_length: 32, strategy: {recompute: selective}"),
            "recompute selective",
        ),
    ],
)
def test_what_this_project_does_not_compute_is_refused(tmp_path, plan, words):
    (tmp_path / "plan.yaml").write_text(plan)
    with pytest.raises(InputError, match=words):
        press(tmp_path / "plan.yaml", (), "batch")


def test_a_budget_above_the_machine_is_refused(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    with pytest.raises(InputError, match="this machine has"):
        press(tmp_path / "plan.yaml", (), "batch", budget_mib=1e9)


def fake_child(monkeypatch, code):
    """A child that does what `code` says instead of training."""

    def popen(_, **options):
        return POPEN([sys.executable, "-c", code], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)


def test_a_trial_over_its_budget_is_killed_and_not_waited_for(monkeypatch):
    fake_child(monkeypatch, "x = bytearray(300 << 20); import time; time.sleep(60)")
    trial = run_trial({}, 3, 150.0)
    assert not trial.fits and trial.peak_mib > 150 and "passed 150 MiB" in trial.why and trial.elapsed_s < 30


def test_a_trial_that_the_kernel_kills_does_not_fit(monkeypatch):
    fake_child(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    trial = run_trial({}, 3, 1000.0)
    assert not trial.fits and "code -9" in trial.why


def test_a_fault_is_no_lack_of_memory(monkeypatch):
    fake_child(monkeypatch, "raise TypeError('wrong')")
    with pytest.raises(EvalkitError, match="TypeError: wrong"):
        run_trial({}, 3, 1000.0)
    fake_child(monkeypatch, "raise MemoryError('no more')")
    assert not run_trial({}, 3, 1000.0).fits


@pytest.mark.slow
def test_real_steps_on_this_machine(tmp_path):
    """A row takes what the backend keeps of it; the largest batch is within the budget, one more isn't (to a twentieth)."""
    (tmp_path / "plan.yaml").write_text(PLAN.replace("vocab_size: 512", "vocab_size: 16384"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "trainer", "memory", str(tmp_path / "plan.yaml"), *OPTIONS],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    found = json.loads(result.stdout)
    fitting = [trial for trial in found["trials"] if trial["fits"]]
    assert found["largest"] == max(trial["value"] for trial in fitting) > 1
    assert all(trial["peak_mib"] <= 900 for trial in fitting)
    assert found["too_large"] - found["largest"] <= max(1, 0.05 * found["largest"])
    # The CPU backend frees nothing within a step, so that a row takes more than where memory is reused.
    assert found["growth_mib"] > found["predicted_growth_mib"] > 0
