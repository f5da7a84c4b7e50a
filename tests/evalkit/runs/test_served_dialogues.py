"""Dialogues with a served model: `model: {endpoint, model, declare}`, by a sandbox of the run's own or one that runs."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalkit.console import SilentProgress
from evalkit.errors import IncompleteError, InputError
from evalkit.replay.access import Access
from evalkit.runs.folder import RunFolder
from evalkit.runs.orchestrate import RunOutcome, RunRequest, run_scenario
from evalkit.runs.rescore import rescore
from evalkit.runs.resume import resume_run
from evalkit.runs.verify import verify
from evalkit.scenario.loader import load_scenario
from tests.sandbox.fixtures import flow_folder
from tests.sandbox.processes import serving_command
from tests.sandbox.security.certificates import make_certificates
from tests.support.chat_server import NAME, Behaviour, ChatServer, Messages, error, serve

__all__ = ["flow_folder"]

TALK: dict[str, Any] = {
    "id": "talk",
    "facts": {"name": "Maria"},
    "turns": [
        {
            "user": "what is my balance",
            "gold": "Your balance is 50 euro.",
            "expect": {"contains": ["50 euro"], "intent": "balance"},
        },
        {
            "user": "my card is lost",
            "gold": "I block it.",
            "expect": {"contains": ["block"], "intent": "card_lost"},
        },
    ],
}
RULES = [
    {"metric": "dialogue/pass_hat_k", "k": 1, "min": 0.9},
    {"metric": "cache/reuse_ratio", "min": 0.1},
]


def say(messages: Messages) -> str:
    """A bot that does its work."""
    return "Your balance is 50 euro." if "balance" in messages[-1]["content"] else "I block it."


@pytest.fixture
def upstream() -> Iterator[ChatServer]:
    how = Behaviour(say=say, cached=lambda messages: 2 * len(messages))
    with serve(ChatServer(how)) as running:
        yield running


def scenario(folder: Path, upstream: ChatServer, flow: Path | None, **more: Any) -> Path:
    (folder / "talk.yaml").write_text(json.dumps(TALK))
    content: dict[str, Any] = {
        "version": 1,
        "name": "served_talk",
        "model": {"endpoint": upstream.url, "model": NAME, "declare": "vendor/model@1", "timeout_s": 5},
        "dialogues": {"include": ["talk.yaml"], "population": "fixed", "max_new_tokens": 32},
        "gate": {"confidence": 0.95, "rules": RULES},
        **({} if flow is None else {"flow": str(flow)}),
        **more,
    }
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(content))
    return path


def run(path: Path, out: Path, **request: Any) -> RunOutcome:
    return run_scenario(RunRequest(load_scenario(path), out=out, **request), SilentProgress())


def metrics(folder: RunFolder) -> dict[str, dict[str, Any]]:
    found = json.loads(folder.results.read_text())["metrics"]
    return {item["name"]: item for item in found if item["slice"] is None and item.get("k") in (None, 1)}


def test_a_run_starts_a_sandbox_of_its_own_in_front_of_the_endpoint(
    upstream: ChatServer, flow_folder: Path, tmp_path: Path
) -> None:
    outcome = run(scenario(tmp_path, upstream, flow_folder), tmp_path / "run")
    assert outcome.verdict_text == "PASS"
    found = metrics(outcome.folder)
    assert found["dialogue/pass_hat_k"]["value"] == 1.0
    assert found["cache/reuse_ratio"]["value"] == pytest.approx(6 / 19)
    assert found["latency/per_token"]["value"] > 0
    plan = json.loads(outcome.folder.plan.read_text())
    assert plan["candidate"]["model_digest"] == "declared:vendor/model@1"
    assert upstream.turns[-1]["messages"][0] == {"role": "user", "content": "what is my balance"}
    assert verify(outcome.folder) == []
    rescored = rescore(outcome.folder)
    assert metrics(rescored.folder)["dialogue/pass_hat_k"]["value"] == 1.0


def test_what_the_endpoint_does_not_tell_never_passes(
    upstream: ChatServer, flow_folder: Path, tmp_path: Path
) -> None:
    upstream.behaviour = Behaviour(say=say, usage="none", token_ids=False)
    outcome = run(scenario(tmp_path, upstream, flow_folder), tmp_path / "run")
    assert outcome.verdict_text == "INCONCLUSIVE"
    found = metrics(outcome.folder)
    assert found["dialogue/pass_hat_k"]["value"] == 1.0
    for name, reason in (("cache/reuse_ratio", "what it reused"), ("latency/per_token", "how many tokens")):
        assert found[name]["value"] is None and f"the engine doesn't tell {reason}" in found[name]["reason"]
    assert found["latency/first_token"]["value"] > 0


def test_a_running_sandbox_of_the_same_declared_model_is_taken_and_another_refused(
    upstream: ChatServer, flow_folder: Path, tmp_path: Path
) -> None:
    path = scenario(tmp_path, upstream, flow_folder)
    for declared, accepted in (("vendor/model@1", True), ("vendor/model@2", False)):
        arguments = ["--engine", "openai", "--endpoint", upstream.url, "--model", NAME, "--declare", declared]
        with serving_command([*arguments, "--flow", str(flow_folder)], tmp_path) as server:
            if accepted:
                assert run(path, tmp_path / "run", sandbox_address=server.address).verdict_text == "PASS"
                continue
            with pytest.raises(
                InputError, match="serves model_digest declared:vendor/model@2, the run measures"
            ):
                run(path, tmp_path / "refused", sandbox_address=server.address)
    assert not (tmp_path / "refused").exists()


@pytest.mark.slow
def test_a_running_sandbox_may_ask_for_tls_a_certificate_and_a_token(
    upstream: ChatServer, flow_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalkit.replay.retries._FIRST_WAIT_S", 0.001)
    path = scenario(tmp_path, upstream, flow_folder)
    files = make_certificates(tmp_path)
    key, cert, token = tmp_path / "client.key", tmp_path / "client.pem", tmp_path / "token"
    key.write_bytes(files.client_pem[0])
    cert.write_bytes(files.client_pem[1])
    token.write_text("sesame")
    (tmp_path / "tokens").write_text("team:sesame\n")
    arguments = [
        "--engine",
        "openai",
        "--endpoint",
        upstream.url,
        "--model",
        NAME,
        "--declare",
        "vendor/model@1",
    ]
    secure = [*files.options(), "--tokens-file", str(tmp_path / "tokens")]
    with serving_command(
        [*arguments, "--flow", str(flow_folder), *secure], tmp_path, files.client("sesame")
    ) as server:
        with pytest.raises(IncompleteError, match="UNAVAILABLE"):
            run(path, tmp_path / "plain", sandbox_address=server.address)
        with pytest.raises(IncompleteError, match="UNAUTHENTICATED"):
            access = Access(files.ca, cert, key)
            run(path, tmp_path / "tokenless", sandbox_address=server.address, sandbox_access=access)
        access = Access(files.ca, cert, key, token)
        outcome = run(path, tmp_path / "run", sandbox_address=server.address, sandbox_access=access)
    assert outcome.verdict_text == "PASS"
    assert "sesame" not in outcome.folder.plan.read_text()


def test_files_for_a_sandbox_need_the_sandbox(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "evalkit", "run", "x.yaml", "--sandbox-ca", "ca.pem"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "error: --sandbox: is missing; the other --sandbox-… options belong to it\n",
    )


def test_an_endpoint_that_breaks_half_way_can_be_resumed(
    upstream: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalkit.replay.retries._FIRST_WAIT_S", 0.001)
    dialogues = [{**TALK, "id": f"talk{number}"} for number in range(8)]
    (tmp_path / "more").mkdir()
    for item in dialogues:
        (tmp_path / "more" / f"{item['id']}.yaml").write_text(
            json.dumps(
                {
                    **item,
                    "turns": [{k: v for k, v in turn.items() if k != "expect"} for turn in item["turns"]],
                }
            )
        )
    path = scenario(
        tmp_path,
        upstream,
        None,
        dialogues={"include": ["more/*.yaml"], "population": "fixed", "max_new_tokens": 32},
    )
    upstream.behaviour = Behaviour(
        say=say, intercept=lambda number, body: error(401, "gone") if number > 5 else None
    )
    with pytest.raises(IncompleteError, match="dialogues in a row got no answer"):
        run(path, tmp_path / "run")
    upstream.behaviour = Behaviour(say=say)
    resumed = resume_run(RunFolder(tmp_path / "run"), SilentProgress())
    assert metrics(resumed.folder)["dialogue/pass_hat_k"]["coverage"] == 1.0


def test_an_endpoint_that_is_not_there_is_the_users_to_mend(
    upstream: ChatServer, flow_folder: Path, tmp_path: Path
) -> None:
    path = scenario(tmp_path, upstream, flow_folder)
    upstream.stop()
    try:
        with pytest.raises(InputError, match="nobody answers at the endpoint"):
            run(path, tmp_path / "run")
    finally:
        upstream.start()
