"""Runs with the result cache: what the model was asked, and what the records say of where it came from."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalkit.backends.mindir import MindirBackend
from evalkit.console import SilentProgress
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.orchestrate import RunRequest, run_scenario
from evalkit.runs.records import SampleRecord
from evalkit.scenario.loader import load_scenario, scenario_from_texts
from evalkit.scenario.schema import Window

TEXTS = ["my card is lost", "what is the fee", "我的卡丢了", "please block my account today " * 12, "", "a"]


def write_texts(path: Path, texts: Sequence[str] = TEXTS) -> Path:
    """A data file of texts; ids are their places."""
    rows = [json.dumps({"id": f"t{index}", "text": text}) for index, text in enumerate(texts)]
    path.write_text("\n".join(rows) + "\n")
    return path


def score(data: Path, bundle: Path, out: Path, **settings: Any) -> RunFolder:
    """`evalkit score --out`; `window` and whatever `RunRequest` takes."""
    window: Window | None = settings.pop("window", None)
    request = RunRequest(scenario_from_texts(data, window), candidate=bundle, out=out, **settings)
    return run_scenario(request, SilentProgress()).folder


def run(scenario: Path, bundle: Path, out: Path, **settings: Any) -> RunFolder:
    """`evalkit run --out`."""
    request = RunRequest(load_scenario(scenario), candidate=bundle, out=out, **settings)
    return run_scenario(request, SilentProgress()).folder


def samples(folder: RunFolder) -> list[SampleRecord]:
    """The candidate's records."""
    return list(read_evidence(folder, "candidate").samples)


def without_provenance(records: Sequence[SampleRecord]) -> list[SampleRecord]:
    """Records but for when and where they were computed."""
    return [replace(record, elapsed_ns=0, from_cache=False, cache_runs=[]) for record in records]


def numbers(folder: RunFolder) -> dict[str, Any]:
    """results.json but for the run's identity."""
    content: dict[str, Any] = json.loads(folder.results.read_bytes())
    return {**content, "run_id": None, "plan_sha256": None}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every batch that the model is asked for."""
    calls: list[int] = []
    original = MindirBackend.score

    def counting(self: MindirBackend, *arrays: Any) -> Any:
        calls.append(1)
        return original(self, *arrays)

    monkeypatch.setattr(MindirBackend, "score", counting)
    return calls
