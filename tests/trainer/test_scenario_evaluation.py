"""`evaluation.scenario`: the scenario's texts during training, with the numbers of `evalkit run` afterwards."""

import json

import numpy as np
import pytest
from mindspore.train import Callback
from safetensors.numpy import load_file

from evalkit.console import SilentProgress
from evalkit.errors import InputError
from evalkit.runs.orchestrate import RunRequest, run_scenario
from evalkit.scenario.loader import load_scenario
from tests.trainer.fixtures import CONFIG, write_records
from trainer.checkpoint import read_checkpoint, step_folder
from trainer.config import load_config
from trainer.export.bundle import export_bundle
from trainer.loop import train

SCENARIO = """\
version: 1
name: texts_alone
model: {bundle: bundle}
text:
  data: texts.jsonl
  window: {length: 48, stride: 48, prefix: first}
  classes: {counts: candidate}
  resample: {target: traffic.jsonl, features: [number_density], min_effective: 2, max_uncovered: 0.9}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    write_records(folder / "train.jsonl", 0, 60)
    write_records(folder / "validation.jsonl", 100, 20)
    texts = [{"id": f"x{n}", "text": f"Tom, how is Graz? I am number {n * 13}."} for n in range(40)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
    # Half of the numbers are short, of the texts a fifth.
    traffic = [
        {"id": f"y{n}", "text": f"Tom, how is Graz? I am number {10 + n + 90 * (n % 2)}."} for n in range(60)
    ]
    (folder / "traffic.jsonl").write_text("".join(json.dumps(text) + "\n" for text in traffic))
    (folder / "scenario.yaml").write_text(SCENARIO, encoding="utf-8")
    (folder / "plain.yaml").write_text(CONFIG, encoding="utf-8")
    (folder / "config.yaml").write_text(
        CONFIG.replace("evaluation: {every: 6,", "evaluation: {every: 5, scenario: scenario.yaml,"),
        encoding="utf-8",
    )
    return folder


@pytest.fixture(scope="module")
def run(folder):
    train(load_config(folder / "config.yaml"), folder, folder / "run")
    return folder / "run"


def records(run) -> list[dict]:
    return [json.loads(line) for line in (run / "scenario.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_last_record_has_the_numbers_of_the_exported_bundle(folder, run):
    found = records(run)
    assert [(record["step"], record["trigger"]) for record in found] == [
        (5, "every_n_steps"),
        (10, "every_n_steps"),
        (12, "at_end"),
    ]
    export_bundle(read_checkpoint(run), folder / "bundle")
    request = RunRequest(load_scenario(folder / "scenario.yaml"), out=folder / "offline")
    offline = {
        (metric.name, metric.slice): metric
        for metric in run_scenario(request, SilentProgress()).results.metrics
    }
    shared = [metric for metric in found[-1]["metrics"] if (metric["name"], metric["slice"]) in offline]
    weighted = next(one for one in shared if (one["name"], one["slice"]) == ("perplexity/token", "resampled"))
    assert weighted["value"] is not None and weighted["value"] != shared[0]["value"]
    assert 2 < found[-1]["effective_sample_size"] <= 40 and found[-1]["drift"]["target_texts"] == 60
    assert {"perplexity/token", "perplexity/long_tail", "perplexity/oov", "bits_per_byte"} <= {
        metric["name"] for metric in shared
    }
    for metric in shared:
        expected = offline[metric["name"], metric["slice"]]
        assert metric["signature"] == expected.signature and metric["n"] == expected.n
        if expected.value is None:
            assert metric["value"] is None and metric["reason"] == expected.reason
        else:
            assert metric["value"] == pytest.approx(expected.value, rel=1e-5), metric["name"]


def test_the_training_is_not_touched(folder, run):
    train(load_config(folder / "plain.yaml"), folder, folder / "plain")
    weights = [load_file(step_folder(place, 12) / "weights.safetensors") for place in (run, folder / "plain")]
    assert all(np.array_equal(weights[0][name], value) for name, value in weights[1].items())
    losses = [
        [json.loads(line)["loss"] for line in (place / "log.jsonl").read_text().splitlines()]
        for place in (run, folder / "plain")
    ]
    assert losses[0] == losses[1]


def test_a_resumed_run_has_no_record_twice(folder, run, tmp_path):
    config = load_config(folder / "config.yaml")
    again = tmp_path / "run"

    class Stop(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 8:
                run_context.request_stop()

    train(config, folder, again, callbacks=[Stop()])
    train(config, folder, again, resume=True)
    steps = [record["step"] for record in records(again)]
    assert steps == sorted(set(steps)) and {5, 10, 12} <= set(steps)
    last, first = records(again)[-1], records(run)[-1]
    assert last["metrics"] == first["metrics"] and last["weights_sha256"] == first["weights_sha256"]


def test_a_scenario_that_is_not_there_is_one_line(folder, tmp_path):
    changed = load_config(folder / "config.yaml")
    changed = changed.model_copy(
        update={"evaluation": changed.evaluation.model_copy(update={"scenario": "missing.yaml"})}
    )
    with pytest.raises(InputError, match=r"missing\.yaml"):
        train(changed, folder, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
