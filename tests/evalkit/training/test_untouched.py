"""Proof that an evaluation changes nothing: trainings with and without are bit-identical, in processes of their own.

The table's cells: graph and PyNative, float32 and float16 with a dynamic loss scale; shuffled data and dropout in all.
float16 is by `to_float` with the norm in float32 (level O2 with LayerNorm doesn't exist in PyNative mode on a CPU).
"""

import json
import subprocess
import sys

import pytest

CELLS = [(mode, precision) for mode in ("graph", "pynative") for precision in ("float32", "float16")]


def run(folder, mode, precision, steps, evaluate_every, poison=None):
    folder.mkdir()
    settings = {
        "folder": str(folder),
        "mode": mode,
        "precision": precision,
        "steps": steps,
        "evaluate_every": evaluate_every,
        "poison": poison,
    }
    command = [sys.executable, "-m", "tests.evalkit.training.run_once"]
    done = subprocess.run(command, input=json.dumps(settings), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(tmp_path, mode, precision, steps, evaluate_every):
    first = run(tmp_path / "first", mode, precision, steps, None)
    control = run(tmp_path / "control", mode, precision, steps, None)
    assert control == first, "the control: two trainings without evaluation differ"
    watched = run(tmp_path / "watched", mode, precision, steps, evaluate_every)
    assert not [record for record in watched["records"] if record[3]]
    assert {name: watched[name] for name in ("state", "losses", "scales")} == {
        name: first[name] for name in ("state", "losses", "scales")
    }
    return watched


@pytest.mark.parametrize("cell", [("graph", "float32"), ("pynative", "float16")], ids="-".join)
def test_short_training(cell, tmp_path):
    watched = compare(tmp_path, *cell, steps=16, evaluate_every=5)
    assert [record[0] for record in watched["records"]] == [5, 10, 15, 16]


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_two_hundred_steps_with_ten_evaluations(cell, tmp_path):
    watched = compare(tmp_path, *cell, steps=200, evaluate_every=20)
    assert [record[0] for record in watched["records"]] == list(range(20, 201, 20))


def test_a_loss_scale_collapse_forces_one_evaluation(tmp_path):
    """The calibration from 2^24 forces none; the collapse forces one, and the record says why."""
    found = run(tmp_path / "run", "graph", "float16", 64, 1000, poison=40)
    forced = [record for record in found["records"] if record[1] == "loss_scale_drop"]
    assert len(forced) == 1 and forced[0][0] > 40
    assert "->" in forced[0][2] and found["scales"][0] < 2.0**24
    assert found["scales"][-1] < found["scales"][39] / 4
