"""Calibration end to end: runs of our own trainer, measured on this machine, rank themselves."""

import json
import subprocess
import sys

import pytest

from tests.trainer.fixtures import CONFIG, write_records
from trainer.planning.calibration import fit_times
from trainer.planning.measurements import read_measurements

# Work rises about twentyfold from first to last.
SIZES = [(1, 2, 64), (1, 8, 64), (3, 2, 64), (3, 8, 64), (3, 8, 192)]


@pytest.mark.slow
def test_own_runs_are_ranked_by_what_is_fitted_to_them(tmp_path):
    write_records(tmp_path / "train.jsonl", 0, 200)
    runs = []
    for number, (layers, rows, hidden) in enumerate(SIZES):
        config = CONFIG.partition("checkpoints:")[0]
        config = config.replace("hidden_size: 16, layers: 2", f"hidden_size: {hidden}, layers: {layers}")
        config = config.replace("batch_size: 4", f"batch_size: {rows}").replace(
            "  validation: [validation.jsonl]\n", ""
        )
        (tmp_path / f"{number}.yaml").write_text(config + "checkpoints: {every: 12}\n")
        runs.append(tmp_path / f"run-{number}")
        command = [
            sys.executable,
            "-m",
            "trainer",
            "train",
            str(tmp_path / f"{number}.yaml"),
            "--out",
            str(runs[-1]),
        ]
        subprocess.run([*command, "--json"], check=True, capture_output=True)
    measured = [row for run in runs for row in read_measurements(run)]
    assert [row.shape.layers for row in measured] == [layers for layers, _, _ in SIZES]
    fit = fit_times(measured, peak_tflops=0.1)
    assert fit.spearman_step is not None and fit.spearman_step >= 0.7, json.dumps(fit.to_json())
    assert fit.relative_error_in_sample < 0.5
