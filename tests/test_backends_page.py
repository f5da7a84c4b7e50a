"""docs/backends.md works as written: its backend and scenario make a run, its endpoint is a valid model."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from evalkit.console import SilentProgress
from evalkit.errors import InputError
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.orchestrate import RunRequest, run_scenario
from evalkit.runs.verify import verify
from evalkit.scenario.loader import load_scenario
from evalkit.scenario.model_schema import EndpointRef
from tests.evalkit.scoring.conftest import byte_level_tokenizer

PAGE = Path(__file__).resolve().parent.parent / "docs" / "backends.md"
TEXTS = ["my card is lost", "the annual fee", "please block my card"]


def blocks(language: str) -> list[str]:
    """The code blocks of a language in the page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def log_table() -> Any:
    size = byte_level_tokenizer().vocab_size
    logits = np.random.default_rng(0).normal(size=(size, size))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def write_example(folder: Path, code: str | None = None) -> Path:
    """The page's files; `code` in place of its module."""
    (folder / "modules").mkdir(parents=True)
    (folder / "modules" / "bigram.py").write_text(code or blocks("python")[0], encoding="utf-8")
    np.save(folder / "modules" / "bigram.npy", log_table())
    (folder / "tokenizer.json").write_text(byte_level_tokenizer()._tokenizer.to_str(), encoding="utf-8")
    lines = [json.dumps({"id": f"t{index}", "text": text}) + "\n" for index, text in enumerate(TEXTS)]
    (folder / "texts.jsonl").write_text("".join(lines))
    (folder / "scenario.yaml").write_text(blocks("yaml")[1], encoding="utf-8")
    return folder / "scenario.yaml"


def run(scenario: Path) -> RunFolder:
    request = RunRequest(load_scenario(scenario), out=scenario.parent / "run")
    return run_scenario(request, SilentProgress()).folder


def test_dialogues_with_a_backend_of_the_users_own_are_refused(tmp_path):
    scenario = write_example(tmp_path)
    (tmp_path / "talk.yaml").write_text("id: d1\nturns: [{user: hi, gold: hello}]\n")
    scenario.write_text(scenario.read_text() + "\ndialogues: {include: [talk.yaml]}\n")
    with pytest.raises(InputError, match="holds no conversation; leave dialogues out"):
        run(scenario)
    assert not (tmp_path / "run").exists()


def test_the_backend_of_the_page_makes_a_run(tmp_path):
    assert len(blocks("python")[0].splitlines()) <= 36
    folder = run(write_example(tmp_path))
    table, tokenizer = log_table(), byte_level_tokenizer()
    for record, text in zip(read_evidence(folder, "candidate").samples, TEXTS, strict=True):
        ids = [1, *tokenizer.encode(text).ids]
        assert abs(record.nll + table[ids[:-1], ids[1:]].sum()) < 1e-5
    found = {item["name"]: item for item in json.loads(folder.results.read_text())["metrics"]}
    assert found["logits/entropy"]["value"] > 1 and "|p:fp64|" in found["perplexity/token"]["signature"]
    plan = json.loads(folder.plan.read_text())
    assert plan["candidate"]["model_digest"].startswith("declared:") and plan["backend"] is None
    assert (
        plan["candidate"]["backend"]["name"] == "bigram" and len(plan["candidate"]["backend"]["sha256"]) == 64
    )
    assert "declared by the user&#39;s backend, not verified" in (folder.reports / "report.html").read_text()
    assert verify(folder) == []


def test_the_endpoint_of_the_page_is_valid():
    ref = EndpointRef.model_validate(yaml.safe_load(blocks("yaml")[0])["model"])
    assert (ref.declare, ref.max_length, ref.api_key_env) == (
        "support-7b-2026-03-int8",
        4094,
        "SUPPORT_MODELS_KEY",
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def backend():", "def other():", "bigram has no 'backend'"),
        (
            'return BigramBackend(Path(__file__).with_name("bigram.npy"))',
            "return 1 / 0",
            "failed with ZeroDivisionError",
        ),
        ("1024", "0", "max_length: 0 isn't possible"),
        ('"fp64"', "None", "precision: None isn't possible"),
        ("def score(", "def scores(", "score: a method is needed"),
        ("logprob=target[..., 0]", "logprob=target", "score gave logprob in the shape"),
        ("logprobs = self.table[token_ids]", "logprobs = self.table[-9999]", "score failed with IndexError"),
        ("return RowStats(", "return dict(", "score gave dict; a RowStats is needed"),
        ("logprob=target[..., 0]", "logprob=np.nan * target[..., 0]", None),
    ],
)
def test_a_backend_that_does_not_hold_its_declaration_is_named(tmp_path, old, new, message):
    page = blocks("python")[0]
    assert old in page
    scenario = write_example(tmp_path, page.replace(old, new))
    if message is None:
        records = read_evidence(run(scenario), "candidate").samples
        assert {record.status for record in records} == {"error"}
        assert "isn't" not in str(records[0].reason) and "is not a finite number" in str(records[0].reason)
        return
    with pytest.raises(InputError) as caught:
        run(scenario)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_statistics_that_are_left_out_are_null_and_failed_segments_are_errors(tmp_path):
    page = blocks("python")[0]
    page = re.sub(r"            (entropy|margin|rank|top_id)=.*\n", "", page)
    page = page.replace(
        "logprob=target[..., 0],", "logprob=target[..., 0],\n            failed={(0, 1): 'it was too hot'},"
    )
    folder = run(write_example(tmp_path, page))
    records = read_evidence(folder, "candidate").samples
    assert sorted(str(record.reason) for record in records) == ["None", "None", "it was too hot"]
    found = {item["name"]: item for item in json.loads(folder.results.read_text())["metrics"]}
    assert found["logits/rank"]["value"] is None and "gives no rank" in found["logits/rank"]["reason"]
    assert found["perplexity/token"]["value"] > 1
