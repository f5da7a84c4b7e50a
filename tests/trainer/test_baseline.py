"""trainer baseline: what is stored, that a second run finds the same, and that a difference is named."""

import json
import subprocess
import sys

import pytest

from evalkit.errors import InputError
from tests.trainer.test_cli import PROJECT, trainer
from trainer.baseline import compare, run_baseline
from trainer.baseline.record import BaselineStep, read_record
from trainer.baseline.trends import check_trends
from trainer.config import load_config
from trainer.timeline import intervals
from trainer.timeline.run import analyse, write_analysis


@pytest.fixture(scope="module")
def config(training_folder):
    return load_config(training_folder / "config.yaml")


@pytest.fixture(scope="module")
def first(config, training_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("baseline")
    done = trainer("baseline", training_folder / "config.yaml", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


def test_everything_is_stored(first):
    out, answer = first
    record = read_record(out / "first" / "baseline.json")
    assert answer["differences"] is None and answer["baseline"] == str(out / "first")
    assert answer["trends"] == [trend.model_dump() for trend in record.trends] and len(record.steps) == 3
    assert all(trend.holds for trend in record.trends) and record.loss_after < record.loss_before
    assert record.steps[0].learning_rate == pytest.approx(0.005) and record.steps[0].sample_ids
    assert record.environment["versions"]["mindspore"] == "2.10.0" and record.environment["device"] == "CPU"
    # Three updates of 9 weights in each of two layers and two outside them, by the profiler.
    assert record.operators["AdamWeightDecay"] == 3 * (2 * 9 + 2)
    graphs = sorted((out / "first" / "graphs").iterdir())
    assert len(graphs) == len(record.graphs) >= 4 and "AdamWeightDecay" in "".join(
        g.read_text() for g in graphs
    )
    assert len((out / "first" / "samples.jsonl").read_text().splitlines()) == 60  # the file has no more
    assert list((out / "first" / "run" / "profile").rglob("trace_view.json"))


def test_the_trainers_own_profile_goes_through_the_timeline(first, tmp_path):
    out, _ = first
    analysis = analyse(out / "first" / "run" / "profile")
    (rank,) = analysis.ranks
    assert rank.why_unknown == "" and intervals.total(rank.computing) > 0
    assert any("AdamWeightDecay" in name for name in analysis.recording.names.texts)
    write_analysis(analysis, tmp_path / "timeline", "baseline")
    assert {path.name for path in (tmp_path / "timeline").iterdir()} == {
        "cube.parquet",
        "heatmap.html",
        "trace.json",
        "findings.json",
    }
    stored = json.loads((out / "first" / "timeline.json").read_text())
    assert stored["findings"] == analysis.to_json()["findings"]


def test_another_process_finds_no_difference(first, training_folder):
    out, _ = first
    again = trainer("baseline", training_folder / "config.yaml", "--out", out, "--json")
    assert again.returncode == 0, again.stderr
    answer = json.loads(again.stdout)
    assert answer["differences"] == [] and answer["baseline"] == str(out / "last")
    records = [read_record(out / name / "baseline.json") for name in ("first", "last")]
    assert records[0] == records[1]


def test_a_difference_is_named_and_exits_1(first, training_folder, tmp_path):
    """Another epsilon in the norms: too little for the loss to show it at two digits, not for the bits."""
    out, _ = first
    text = (training_folder / "config.yaml").read_text()
    changed = tmp_path / "config.yaml"
    for name in ("train.jsonl", "validation.jsonl"):
        text = text.replace(f"[{name}]", f"[{training_folder / name}]")
    changed.write_text(text.replace("max_length: 64}", "max_length: 64, norm_eps: 2.0e-5}"))
    again = trainer("baseline", changed, "--out", out)
    assert again.returncode == 1, again.stderr
    lines = again.stdout.splitlines()
    assert "differs  config.model.norm_eps: 1e-05 before, 2e-05 now" in lines
    assert any(line.startswith("differs  steps.0.loss: ") for line in lines)
    assert any(line.startswith("differs  weights_sha256: ") for line in lines)
    assert not any("operators" in line or "environment" in line for line in lines)


def test_differences_come_with_their_causes_first(first):
    record = read_record(first[0] / "first" / "baseline.json")
    other = record.model_copy(
        update={
            "environment": {**record.environment, "device": "Ascend"},
            "operators": {**record.operators, "MatMul": 1},
            "loss_after": 1.0,
        }
    )
    assert compare(record, record) == []
    found = [difference.what for difference in compare(record, other)]
    assert found == ["environment.device", "loss_after", "operators.MatMul"]


def step(number, norm=1.0, rate=0.1):
    return BaselineStep(
        step=number, loss=5.0, grad_norm=norm, learning_rate=rate, loss_scale=1, sample_ids=("a",)
    )


@pytest.mark.parametrize(
    ("norms", "rates", "losses", "broken"),
    [
        ((1, 2, 1), (0.005, 0.01, 0.009), (5.0, 4.0), []),
        ((1, 2, 1), (0.005, 0.01, 0.009), (5.0, 5.0), ["loss_falls"]),
        ((1, 2, 1), (0.005, 0.01, 0.009), (5.0, None), ["loss_falls"]),
        ((1, 20, 1), (0.005, 0.01, 0.009), (5.0, 4.0), ["grad_norm_stable"]),
        ((1, None, 1), (0.005, 0.01, 0.009), (5.0, 4.0), ["grad_norm_stable"]),
        ((0, 0, 0), (0.005, 0.01, 0.009), (5.0, 4.0), ["grad_norm_stable"]),
        ((1, 2, 1), (0.005, 0.02, 0.009), (5.0, 4.0), ["learning_rate_as_scheduled"]),
        ((1, 2, 1), (0.0, 0.0, 0.0), (5.0, 4.0), ["learning_rate_as_scheduled"]),
    ],
)
def test_trends(config, norms, rates, losses, broken):
    steps = [step(n, norm, rate) for n, (norm, rate) in enumerate(zip(norms, rates, strict=True), start=1)]
    trends = check_trends(steps, *losses, config)
    assert [trend.name for trend in trends if not trend.holds] == broken


def test_a_broken_record_is_an_error(config, training_folder, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "baseline.json").write_text('{"schema": "trainer.baseline/1"}')
    with pytest.raises(InputError, match=r"baseline.json: not a baseline record"):
        run_baseline(config, training_folder, tmp_path)


def test_profile_and_json_leave_one_object_on_stdout(training_folder, tmp_path):
    """MindSpore's profiler prints its progress on stdout, from a process of its own."""
    config = tmp_path / "config.yaml"
    text = (training_folder / "config.yaml").read_text().replace("steps: 12", "steps: 5")
    for name in ("train.jsonl", "validation.jsonl"):
        text = text.replace(f"[{name}]", f"[{training_folder / name}]")
    config.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "train", config, "--out", tmp_path / "run", "--profile", "--json"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and json.loads(done.stdout)["steps"] == 5, done.stderr
