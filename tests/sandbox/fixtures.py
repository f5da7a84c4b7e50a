"""Fixtures of tests that need the sandbox; a conftest imports them by name."""

import atexit
import csv
import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.processes import SandboxProcess, serving

FLOW = """
version: 1
name: tiny
intent: {model: intent.skops, out_of_scope_below: 0.35}
handover:
  intents: [contact_human]
  words: {en: [lawyer], zh: [投诉]}
  after_failed_turns: 2
  threshold: 0.5
  reply: {en: "I am connecting you to a colleague.", zh: "正在为您转接人工客服。"}
satisfaction: {model: satisfaction.skops}
"""
INTENTS = {
    "card_lost": (
        "my card is lost",
        "I lost my card",
        "the card is gone",
        "card was stolen",
        "lost card",
        "我的卡丢了",
    ),
    "balance": (
        "what is my balance",
        "show the balance",
        "how much money do I have",
        "balance please",
        "account balance",
    ),
    "contact_human": (
        "I want a human",
        "let me talk to a person",
        "a real person please",
        "human agent",
        "connect me to staff",
    ),
}
REPLIES = {5: "Your balance is 50 euro.", 1: "I can not help with that.", 3: "Please tell me your account."}


@functools.cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="sandbox-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _bundle() -> Path:
    out = _scratch() / "tiny"
    command = [sys.executable, "-m", "tests.sandbox.tiny_bundle", str(out)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return out


@functools.cache
def _flow() -> Path:
    from sandbox.business.fit import fit_intent, fit_satisfaction

    folder = _scratch() / "flow"
    folder.mkdir()
    (folder / "flow.yaml").write_text(FLOW)
    data = _scratch()
    with (data / "intents.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "intent", "locale"])
        writer.writerows((text, intent, "en") for intent, texts in INTENTS.items() for text in texts)
    with (data / "satisfaction.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["user_text", "reply", "turn_index", "failed_turns", "satisfaction"])
        for rating, reply in REPLIES.items():
            writer.writerows((text, reply, 0, 0 if rating > 2 else 1, rating) for text in INTENTS["balance"])
    fit_intent(data / "intents.csv", folder, rated=False)
    fit_satisfaction(data / "satisfaction.csv", folder, rated=True)
    return folder


@pytest.fixture(scope="session")
def tiny_bundle() -> Path:
    """A bundle of a tiny model with random weights; built once."""
    return _bundle()


@pytest.fixture(scope="session")
def flow_folder() -> Path:
    """A flow folder with small trained artefacts; made once."""
    return _flow()


@pytest.fixture(scope="session")
def server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    """A server without a flow, shared by the tests that leave it as they found it."""
    with serving(tiny_bundle, tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture(scope="session")
def flow_server(
    tiny_bundle: Path, flow_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SandboxProcess]:
    """A server with a flow, shared likewise."""
    with serving(tiny_bundle, tmp_path_factory.mktemp("server"), "--flow", str(flow_folder)) as process:
        yield process
