"""Simulated users against an in-process sandbox: rules, a served model, and who is to blame."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from evalkit.replay.trial import ReplaySettings
from evalkit.runs.records import TurnRecord
from tests.evalkit.replay.test_runner import remembering, replay
from tests.sandbox.processes import SandboxProcess
from tests.support.dialogues import RECALL, dialogue
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession

RULES: dict[str, Any] = {
    "kind": "rules",
    "answers": [{"asks": "which account", "say": "Account {name}-1."}],
    "corrects": ["amount"],
    "correction": "No, {fact} is {value}.",
    "gives_up_after": 2,
}


def play(answer: Callable[[FakeSession, str], Answer], user: dict[str, Any], **more: Any) -> list[TurnRecord]:
    talk = dialogue(RECALL, user=user, ledger={"amount": r"send (\d+)"})
    return replay(FakeSandbox(answer), [talk], ReplaySettings(seed=1, **more))


def test_a_rule_driven_user_answers_and_corrects() -> None:
    replies = iter(["Hello, which account?", "I send 99 euros.", "Maria, 250"])
    records = play(lambda session, text: Answer(next(replies)), RULES)
    assert [record.user_text for record in records] == [
        "Hello, I am Maria.",
        "Account Maria-1. Please send 250 euros.",
        "No, amount is 250. Who am I and what do I send?",
    ]
    assert [(check.name, check.outcome) for check in records[1].ledger] == [("amount", "contradicted")]


def test_a_user_gives_up_after_replies_that_do_not_help() -> None:
    talk = {
        "turns": [{"user": f"turn {n}", "gold": "yes", "expect": {"contains": ["yes"]}} for n in range(4)]
    }
    rules = {"kind": "rules", "gives_up_after": 2}
    sandbox = FakeSandbox(lambda session, text: Answer("no"))
    records = replay(sandbox, [dialogue(RECALL, user=rules, **talk)], ReplaySettings(seed=1))
    assert [record.status for record in records] == ["ok", "ok", "model_fault", "model_fault"]
    assert "gave up after 2 replies" in str(records[2].reason) and records[2].blame == "model"


def test_probes_are_asked_alone_in_a_session_of_their_own() -> None:
    sandbox = FakeSandbox(remembering)
    talk = dialogue(RECALL)
    records = replay(sandbox, [talk], ReplaySettings(seed=1, trials=2, single_turn_probes=True))
    assert [record.single_turn for record in records] == [None, None, [True, True], None, None, None]
    alone = [session for key, session in sandbox.sessions.items() if key.endswith("-2")]
    assert [session.texts for session in alone] == [
        ["Hello, I am Maria. Please send 250 euros. Who am I and what do I send?"]
    ]


Says = Callable[[dict[str, Any]], str | None]


@contextmanager
def user_model(replies: list[str | None] | Says) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An endpoint that says the given texts in turn, or what a function makes of a request; None is a server error."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            text = replies(asked[-1]) if callable(replies) else replies[min(len(asked), len(replies)) - 1]
            body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
            self.send_response(500 if text is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()


def model_user(url: str) -> dict[str, Any]:
    return {"kind": "model", "endpoint": url, "model": "user", "declare": "user@1"}


def test_s10_a_stop_word_of_the_simulator_is_text_and_swallows_nothing() -> None:
    with user_model(["Yes, please do. ###STOP###", "And who am I?"]) as (url, asked):
        records = play(remembering, model_user(url))
    assert [record.user_text for record in records] == [
        "Hello, I am Maria.",
        "Yes, please do. ###STOP###",
        "And who am I?",
    ]
    assert [record.status for record in records] == ["ok"] * 3
    assert "250" in asked[0]["messages"][0]["content"]


@pytest.mark.parametrize("said", [[""], [None]])
def test_s10b_an_empty_or_broken_simulator_is_asked_again_and_then_to_blame(said: list[str | None]) -> None:
    with user_model(said) as (url, asked):
        records = play(remembering, model_user(url))
    assert len(asked) == (2 if said == [""] else 1)
    assert [record.status for record in records] == ["ok", "infrastructure_fault", "infrastructure_fault"]
    assert records[1].blame == "user" and "plays the user" in str(records[1].reason)


def test_s10b_an_empty_text_is_mended_by_asking_again() -> None:
    with user_model(["", "Send it.", "Who?"]) as (url, _):
        records = play(remembering, model_user(url))
    assert [record.user_text for record in records] == ["Hello, I am Maria.", "Send it.", "Who?"]


def test_s10c_user_and_assistant_speak_by_turns() -> None:
    with user_model(["one", "two"]) as (url, asked):
        play(remembering, model_user(url))
    for request in asked:
        roles = [message["role"] for message in request["messages"]]
        assert roles == ["system", *["assistant", "user"] * (len(roles) // 2)]


def test_a_real_model_plays_the_user_in_its_own_words(server: SandboxProcess) -> None:
    """Random weights, but a model that reads its prompt: other persona or reply, other words; the same ones, the same."""

    def say(request: dict[str, Any]) -> str:
        first, *_, last = request["messages"]
        session = server.open(system_text=first["content"])
        return server.turn(session, last["content"], max_new_tokens=6).text

    with user_model(say) as (url, asked):
        records = play(remembering, model_user(url))
        again = play(remembering, model_user(url))
    texts = [record.user_text for record in records]
    assert texts == [record.user_text for record in again] and len(asked) == 4
    assert texts[0] == "Hello, I am Maria." and len(set(texts)) == 3 and all(texts)
    assert texts[1:] == [say(request).strip() for request in asked[:2]]
    assert [record.status for record in records] == ["ok"] * 3
