"""Runs that an alias may or may not hold, made without a model; and their scenario and policy."""

import atexit
import functools
import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalkit.canonical import sha256_text
from evalkit.runs.folder import RunFolder
from evalkit.scenario.loader import load_scenario
from tests.evalkit.fake_run import plan, random_evidence, write_run

GATE = "{rules: [{metric: perplexity/token, max: 100}]}"
SCENARIO = f"version: 1\nname: shop\ntext: {{data: texts.jsonl}}\ngate: {GATE}\n"
POLICY = "rules:\n  - {metric: perplexity/token, max: 100}\n"
PASSING = [{"metric": "perplexity/token", "max": 100}]
FAILING = [{"metric": "perplexity/token", "max": 1.1}]


@dataclass(frozen=True)
class Shop:
    """A folder with scenario.yaml, policy.yaml and runs."""

    folder: Path

    @property
    def scenario(self) -> Path:
        """With its gate."""
        return self.folder / "scenario.yaml"

    @property
    def policy(self) -> Path:
        """The same policy in a file of its own."""
        return self.folder / "policy.yaml"

    def run(self, model: str, rules: list[dict[str, Any]] | None = None, **fields: Any) -> RunFolder:
        """A run whose candidate's digest is `digest_of(model)`."""
        described = {**plan()["candidate"], "name": model, "model_digest": digest_of(model)}
        number = sum(1 for _ in self.folder.glob("run-*"))
        content: dict[str, Any] = {
            "run_id": f"2026113{number // 60 % 10}T1200{number % 60:02d}Z-{model}",
            "scenario": {"name": "shop", "output": {"formats": ["html"]}},
            "scenario_sha256": load_scenario(self.scenario).digest,
            "candidate": described,
            **fields,
        }
        folder = self.folder / f"run-{number}-{model}"
        shutil.copytree(_made(number, json.dumps(rules or PASSING), json.dumps(content)), folder)
        return RunFolder(folder)


@functools.cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="promotable-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _made(number: int, rules: str, content: str) -> Path:
    """A run, made once for all tests that want the same; to be copied."""
    evidence = random_evidence(number, texts=30, dialogues=0)
    # Texts alone: nothing here is about more, and they are soon computed.
    evidence = replace(evidence, samples=tuple(item for item in evidence.samples if item.kind == "text"))
    folder = _scratch() / sha256_text(f"{number} {rules} {content}")
    return write_run(folder, json.loads(rules), evidence, None, json.loads(content)).path


def digest_of(model: str) -> str:
    """Stands for the digest of a model's content."""
    return sha256_text(model)


def make_shop(folder: Path) -> Shop:
    """Scenario, data and policy; no runs yet."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.jsonl").write_text('{"id": "a", "text": "hello"}\n')
    (folder / "scenario.yaml").write_text(SCENARIO)
    (folder / "policy.yaml").write_text(POLICY)
    return Shop(folder)
