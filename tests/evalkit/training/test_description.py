"""What an evaluation was made of."""

import importlib
import json
import os
import sys

import pytest

from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from evalkit.runs.evidence import Evidence
from evalkit.training.description import EvaluationDescription, describe, read_description, stale_code
from tests.evalkit.fake_run import plan, random_evidence, write_run
from tests.evalkit.training.fixtures import small_validation, write_tokenizer
from tests.evalkit.training.table import TableBackend


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    return small_validation(tmp_path_factory.mktemp("validation"))


def test_round_trip(tmp_path, check):
    backend = TableBackend(check.tokenizer.vocab_size, 128)
    ids = [item.sample_id for item in check.items]
    found = describe(
        "mine", validation=check, backend=backend, counted=[*ids[1:], ids[2]], seed=3, shuffled=False
    )
    assert found.missing == (ids[0],) and found.repeated == (ids[2],)
    assert found.batch_difference < 1e-2 and found.signature == check.context.signatures["text"]
    found.write(tmp_path / "mine.json")
    read = read_description(tmp_path / "mine.json")
    assert read == EvaluationDescription(**{**vars(found), "source": str(tmp_path / "mine.json")})


def test_the_tokenizer_is_that_of_the_validation(tmp_path, check):
    assert describe("mine", validation=check).tokenizer_sha256 == sha256_file(write_tokenizer(tmp_path))
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert describe("mine", validation=check, tokenizer_file=other).tokenizer_sha256 == sha256_file(other)


def test_a_run_and_a_description_of_the_same_texts_hold_the_same_samples(tmp_path):
    texts = tuple(one for one in random_evidence(1, texts=12, dialogues=0).samples if one.kind == "text")
    rules = [{"metric": "perplexity/token", "max": 100}]
    fields = {
        "seed": 1,
        "candidate": {**plan()["candidate"], "tokenizer_sha256": None},
        "backend": {"precision": "fp32"},
        "environment": {"versions": {}},
    }
    folder = write_run(tmp_path / "run", rules, Evidence(samples=texts), None, fields)
    found = describe("mine", counted=[one.sample_id for one in texts])
    assert found.samples == 12
    assert read_description(folder.path).samples_sha256 == found.samples_sha256


@pytest.mark.timeout(20)
def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(InputError, match=r"a\.json: a pipe, a file is needed"):
        read_description(tmp_path / "a.json")


def test_company_that_moves_a_score_is_measured(check):
    backend = TableBackend(check.tokenizer.vocab_size, 128, leak=0.25)
    found = describe("leaky", validation=check, backend=backend)
    assert found.batch_difference == pytest.approx(0.25, abs=1e-2)


def test_parts_in_training_mode_are_named():
    from mindspore import nn

    network = nn.SequentialCell(nn.Dense(2, 2), nn.Dropout(p=0.5))
    network.set_train(False)
    assert describe("frozen", network=network).training_parts == ()
    network.set_train(True)
    assert describe("training", network=network).training_parts == ("1 (Dropout)",)


def test_code_older_than_its_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "metric_of_mine.py"
    file.write_text("def score(x):\n    return x + 1\n\n\ndef other(x):\n    return x\n")
    module = importlib.import_module("metric_of_mine")
    assert stale_code([module.score, module.other, json.dumps, EvaluationDescription]) == ()
    file.write_text("def score(x):\n    return x + 2\n\n\ndef other(x):\n    return x\n")
    assert stale_code([module.score, module.other]) == ("metric_of_mine.score",)
    sys.modules.pop("metric_of_mine")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "broken JSON"),
        ("[]", "schema"),
        ('{"schema": "evalkit.evaluation/1", "sourc": "x"}', "a.json: sourc: unknown key"),
        ('{"schema": "evalkit.evaluation/1", "repeated": 5}', "a.json: repeated: .*valid (array|tuple)"),
        ('{"schema": "evalkit.evaluation/1", "batch_difference": "x"}', "a.json: batch_difference: "),
        ('{"schema": "evalkit.evaluation/1", "versions": {"numpy": 2}}', "a.json: versions.numpy: "),
    ],
)
def test_a_file_that_is_no_description_is_one_line(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_description(tmp_path / "a.json")
    with pytest.raises(InputError, match="can't be read"):
        read_description(tmp_path / "missing.json")


@pytest.mark.parametrize("name", ["seed", "backend", "measurement", "candidate", "environment"])
def test_a_plan_without_a_field_is_one_line(tmp_path, name):
    folder = write_run(
        tmp_path / "run",
        [{"metric": "perplexity/token", "max": 100}],
        random_evidence(1, texts=12, dialogues=0),
        None,
        {
            "seed": 1,
            "candidate": {**plan()["candidate"], "tokenizer_sha256": None},
            "backend": {"precision": "fp32"},
            "environment": {"versions": {"numpy": "1.26.4"}},
        },
    )
    assert read_description(folder.path).versions == {"numpy": "1.26.4"}
    content = json.loads(folder.plan.read_text())
    del content[name]
    folder.plan.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"plan.json: {name}"):
        read_description(folder.path)


def test_a_run_of_a_served_model_has_the_precision_of_its_server(tmp_path):
    served = {**plan()["candidate"], "tokenizer_sha256": None, "backend": {"precision": "unknown"}}
    fields = {"seed": 1, "candidate": served, "backend": None, "environment": {"versions": {}}}
    evidence = random_evidence(1, texts=12, dialogues=0)
    rules = [{"metric": "perplexity/token", "max": 100}]
    folder = write_run(tmp_path / "run", rules, evidence, None, fields)
    assert read_description(folder.path).precision == "unknown"
