"""Scenarios against a local endpoint that serves stories260K, and the fixtures for them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalkit.backends.choice import open_backend
from evalkit.backends.endpoint import EndpointBackend
from evalkit.backends.endpoint_client import EndpointClient
from evalkit.backends.endpoint_texts import EndpointTexts
from evalkit.bundle import Bundle
from evalkit.console import SilentProgress
from evalkit.metrics.token_classes import build_classifier
from evalkit.runs.folder import RunFolder
from evalkit.runs.orchestrate import RunRequest, run_scenario
from evalkit.runs.records import SampleRecord
from evalkit.scenario.loader import load_scenario
from evalkit.scenario.model_schema import EndpointRef
from evalkit.scenario.schema import Classes, Window
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.texts import TextItem
from tests.support.completions_server import NAME, Behaviour, CompletionsServer, serve
from tests.support.real_models import references

DECISIONS = [
    ("Lily was sad. Her mom gave her a hug. Lily was", "happy"),
    ("Tim fell and hurt his knee. Tim was", "sad"),
    ("The sun was hot and the ice", "sad"),
    ("They had a party with a big cake. They were", "happy"),
]


@pytest.fixture(scope="session")
def stories_server(stories_bundle: Bundle) -> Iterator[CompletionsServer]:
    """A server of stories260K; take `endpoint` in tests, which puts its behaviour back."""
    with serve(CompletionsServer(open_backend("onnx", stories_bundle), stories_bundle.tokenizer)) as server:
        yield server


@pytest.fixture
def endpoint(stories_server: CompletionsServer, monkeypatch: pytest.MonkeyPatch) -> CompletionsServer:
    """The server with its default behaviour; clients come back to it quickly."""
    monkeypatch.setattr("evalkit.backends.endpoint_client._FIRST_WAIT_S", 0.001)
    stories_server.behaviour = Behaviour()
    stories_server.requests.clear()
    stories_server.busy = 0
    return stories_server


def write_scenario(
    folder: Path,
    model: dict[str, Any],
    shared_data: Path,
    baseline: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """The reference texts, a long one and decisions, with `model`; `more` are further keys of the scenario."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [item["text"] for item in references(shared_data, "stories260K")]
    texts.append(" ".join(texts[:10]) + " " + " ".join(texts[:10][::-1]))
    rows = [{"id": f"t{index:02d}", "text": text} for index, text in enumerate([*texts, texts[2], ""])]
    decisions = [
        {"id": f"d{index}", "prompt": prompt, "target": target}
        for index, (prompt, target) in enumerate(DECISIONS)
    ]
    for name, lines in (("texts.jsonl", rows), ("decisions.jsonl", decisions)):
        (folder / name).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    scenario = {
        "version": 1,
        "name": "served",
        "model": model,
        **({} if baseline is None else {"baseline": baseline}),
        "text": {"data": "texts.jsonl"},
        "risk": {"data": "decisions.jsonl", "labels": ["happy", "sad"], "high_risk": "sad"},
        **more,
    }
    # JSON is YAML.
    (folder / "scenario.yaml").write_text(json.dumps(scenario))
    return folder / "scenario.yaml"


def by_ids(server: CompletionsServer, bundle: Bundle, **more: Any) -> dict[str, Any]:
    """The model by token ids."""
    tokenizer = {"tokenizer": str(bundle.path / "tokenizer.json"), "prefix_token": "<s>", "max_length": 500}
    return {"endpoint": server.url, "model": NAME, "declare": "stories-260k", **tokenizer, **more}


def by_texts(server: CompletionsServer, **more: Any) -> dict[str, Any]:
    """The model by whole texts."""
    return {"endpoint": server.url, "model": NAME, "declare": "stories-260k", **more}


def run(scenario: Path, out: Path, **request: Any) -> RunFolder:
    """A whole run with token rows."""
    asked = RunRequest(load_scenario(scenario), out=out, keep_tokens=True, **request)
    return run_scenario(asked, SilentProgress()).folder


def metrics(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """results.json's metrics by name."""
    content = json.loads(folder.results.read_text())
    return {item["name"]: item for item in content["metrics"] if item["slice"] is None}


SHORT = "Tim had a red ball."
LONG = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park all day, and her "
    "dog was always with her."
)


def open_ids(server: CompletionsServer, bundle: Bundle, **more: Any) -> EndpointBackend:
    """The backend by token ids."""
    ref = EndpointRef.model_validate(by_ids(server, bundle, **more))
    return EndpointBackend(
        EndpointClient(ref), bundle.tokenizer, model_digest="declared:x", max_length=ref.max_length or 0
    )


def open_texts(server: CompletionsServer, **more: Any) -> EndpointTexts:
    """The same by whole texts."""
    return EndpointTexts(EndpointClient(EndpointRef.model_validate(by_texts(server, **more))))


def score(backend: EndpointBackend, bundle: Bundle, texts: list[str]) -> list[SampleRecord]:
    """One record a text, in order; windows of 64 positions."""
    records: list[SampleRecord] = []
    score_texts(
        [TextItem(str(index), text, str(index)) for index, text in enumerate(texts)],
        bundle.tokenizer,
        backend,
        Window(length=64, stride=64),
        build_classifier(Classes(), bundle.tokenizer, "t", None, None),
        on_records=records.extend,
    )
    return sorted(records, key=lambda record: record.sample_id)
