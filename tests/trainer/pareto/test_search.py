"""Real trials: what a configuration becomes, and a search that survives kill -9."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from evalkit.errors import InputError
from evalkit.yaml_source import YamlSource
from tests.trainer.killed import PROJECT, write_config
from trainer.pareto.space import Choices, Search, load_space
from trainer.pareto.study import run_search
from trainer.pareto.trial import changed_config, read_score, read_speed
from trainer.pareto.values import check_values

SPACE = """\
version: 1
name: small
search:
  config: data/config.yaml
  fields:
    batch_size: {{choices: [2, 4, 8]}}
    optimizer.learning_rate: {{low: 1.0e-3, high: 3.0e-2, log: true}}
  trials: {trials}
score: {{metric: perplexity/token, direction: minimize}}
seeds: [1, 2]
"""


def search(**changes):
    return Search.model_validate(
        {"config": "c", "fields": {"batch_size": {"choices": [1]}}, "trials": 1} | changes
    )


def test_equal_samples_change_the_steps(tmp_path):
    base = YamlSource(write_config(tmp_path / "data", 40)).value  # 2 rows, 2 batches a step
    config = changed_config(base, search(), {"batch_size": 8, "optimizer.learning_rate": 0.5}, 7)
    assert (config.steps, config.batch_size, config.seed) == (10, 8, 7)
    assert config.optimizer.learning_rate == 0.5 and config.evaluation.every == 10
    assert changed_config(base, search(budget="steps"), {"batch_size": 8}, 7).steps == 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 80}, "warmup_steps 2 isn't below steps 1"),
        ({"bath_size": 8}, "bath_size"),
        ({"steps.x": 1}, "steps isn't a mapping"),
    ],
)
def test_values_that_dont_fit_are_refused_in_one_line(tmp_path, change, message):
    base = YamlSource(write_config(tmp_path / "data", 40)).value
    with pytest.raises(ValueError, match=message) as caught:
        changed_config(base, search(), change, 1)
    assert "\n" not in str(caught.value)


def test_score_and_speed_are_those_of_the_end(tmp_path):
    lines = [{"step": step, "tokens_per_s": speed} for step, speed in enumerate([1, 2, 50, 70, 60], start=1)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_speed(tmp_path / "log.jsonl") == 60
    record = {"step": 5, "metrics": [{"name": "perplexity/token", "value": 3.5}]}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(record) + "\n")
    assert read_score(tmp_path, "perplexity/token", 5) == 3.5
    with pytest.raises(
        InputError, match="'recall' isn't measured after the last step; measured is perplexity/token"
    ):
        read_score(tmp_path, "recall", 5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds: [1, 2]", "seeds: [1]", "one seed can't tell luck"),
        ("seeds: [1, 2]", "seeds: [1, 1]", "seeds: 1 is given twice"),
        ("seeds: [1, 2]", "seeds: [1, true]", r"seeds.1: Input should be a valid integer \(got [Tt]rue\)"),
        ("seeds: [1, 2]", "seeds: [1, -2]", "seeds.1: Input should be greater than or equal to 0"),
        ("seeds: [1, 2]", "seeds: [1, 4294967296]", "seeds.1: Input should be less than"),
        ("trials: 2", "trials: true", "search.trials: Input should be a valid integer"),
        ("trials: 2", 'trials: "2"', "search.trials: Input should be a valid integer"),
        ("[2, 4, 8]", "[2, 4, 2]", "batch_size.*: 2 is given twice; keep one of them"),
        ("[2, 4, 8]", "[2, 4, 4.0]", "batch_size.*: 4.0 is given twice"),
        ("batch_size:", "seed:", "seed can't be varied"),
        ("low: 1.0e-3", "low: 1", "isn't below high"),
    ],
)
def test_a_broken_space_is_refused(tmp_path, old, new, message):
    (tmp_path / "space.yaml").write_text(SPACE.format(trials=2).replace(old, new))
    with pytest.raises(InputError, match=message):
        load_space(tmp_path / "space.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch_size:", "batchsize:", "search.fields: batchsize: unknown key"),
        ("optimizer.learning_rate", "optimizer.learning_rat", "optimizer.learning_rat: unknown key"),
        ("perplexity/token", "perplexity/tokn", "score.metric 'perplexity/tokn' isn't measured"),
    ],
)
def test_a_misspelt_field_or_score_is_refused_before_anything_runs(tmp_path, old, new, message):
    write_config(tmp_path / "data", 12)
    (tmp_path / "space.yaml").write_text(SPACE.format(trials=2).replace(old, new))
    with pytest.raises(InputError, match=message):
        run_search(load_space(tmp_path / "space.yaml"), tmp_path, tmp_path / "out")
    assert not list((tmp_path / "out").glob("runs/*"))
    assert not (tmp_path / "out/space.json").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[2, 4, 8]", "[2, wide]", "batch_size: 'wide' can't be tried: Input should be a valid integer"),
        ("[2, 4, 8]", '[2, "4"]', "batch_size: '4' can't be tried"),
        ("[2, 4, 8]", "[2, true]", "batch_size: True can't be tried"),
        ("[2, 4, 8]", "[2, 4.5]", "batch_size: 4.5 can't be tried"),
        ("[2, 4, 8]", "[2, null]", "batch_size: None can't be tried"),
        ("[2, 4, 8]", "[2, 0]", "batch_size: 0 can't be tried: Input should be greater than 0"),
        ("{choices: [2, 4, 8]}", "{low: 2, high: 4.5}", "batch_size: 4.5 can't be tried"),
        ("optimizer.learning_rate: {low: 1.0e-3, high: 3.0e-2, log: true}",
         "model.dropout: {low: 0.0, high: 1.5}", "model.dropout: 1.5 can't be tried"),
        ("optimizer.learning_rate: {low: 1.0e-3, high: 3.0e-2, log: true}",
         "optimizer.schedule: {choices: [cosine, cosin]}", "optimizer.schedule: 'cosin' can't be tried"),
    ],
)  # fmt: skip
def test_a_value_that_its_field_never_takes_is_refused_before_anything_runs(tmp_path, old, new, message):
    """And isn't counted as an infeasible trial: it would look like a finding about the setting."""
    text = SPACE.format(trials=2)
    assert old in text
    write_config(tmp_path / "data", 12)
    (tmp_path / "space.yaml").write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message):
        run_search(load_space(tmp_path / "space.yaml"), tmp_path, tmp_path / "out")
    assert not list((tmp_path / "out").glob("runs/*"))
    assert not (tmp_path / "out/space.json").exists()


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("batch_size", [2, 80]),  # more than the rows allow: a matter of the other fields
        ("model.kv_heads", [None, 2]),
        ("optimizer.learning_rate", [1, 0.5]),
        ("evaluation.scenario", [None, "scenario.yaml"]),
        ("parallel.recompute", ["none", "full"]),
        ("checkpoints", [None]),
        ("no.such.field", ["left to the trial's own check"]),
    ],
)
def test_values_that_a_field_can_take_stay(name, choices):
    check_values(name, Choices(choices=choices))


@pytest.mark.slow
def test_a_search_killed_by_9_goes_on_and_keeps_what_was_done(tmp_path):
    # Long enough to measure a speed whatever batch size the sampler takes: a larger one has fewer steps.
    write_config(tmp_path / "data", 48)
    (tmp_path / "space.yaml").write_text(SPACE.format(trials=3))
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "trainer",
        "pareto",
        str(tmp_path / "space.yaml"),
        "--out",
        str(out),
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list(out.glob("runs/*/*/result.json"))) < 3:  # in the middle of the second configuration
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/result.json")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["settings"]) == 3 and all(item["n"] == 2 for item in report["settings"])
    assert all(path.stat().st_mtime_ns == before for path, before in kept.items())
    # In the order of an unbroken search, and so numbered.
    assert report["settings"][0]["configuration"] == {"batch_size": 2, "optimizer.learning_rate": 0.01}
    assert "configuration 2 of 3, " in done.stderr and "configuration 1 of 3, " not in done.stderr
