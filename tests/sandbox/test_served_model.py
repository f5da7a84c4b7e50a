"""The whole server in front of a served model: sessions, flow, statuses, and what it says about itself."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from evalkit.errors import InputError
from evalkit.wire import sandbox_pb2 as wire
from sandbox.endpoint_options import served_model
from tests.sandbox.processes import (
    NOT_SERVING,
    SERVING,
    SandboxProcess,
    eventually,
    serving_command,
    status_of,
)
from tests.sandbox.served_models import BALANCE, LOST, broken, options
from tests.support.chat_server import Behaviour, ChatServer, event, prompt_tokens, serve


def test_it_says_what_it_serves(sandbox: SandboxProcess) -> None:
    assert sandbox.ready["model_digest"] == "" and sandbox.ready["declared_model"] == "vendor/model@1"
    described = sandbox.stub.Describe(wire.DescribeRequest())
    assert (described.model_digest, described.declared_model) == ("", "vendor/model@1")
    assert (described.engine, described.max_context_tokens, described.max_turn_tokens) == (
        "openai",
        4096,
        1024,
    )
    assert described.flow_digest and sandbox.status() == SERVING


def test_a_conversation_with_its_flow(sandbox: SandboxProcess, upstream: ChatServer) -> None:
    session = sandbox.open(system_text="be kind")
    first = sandbox.turn(session, "I lost my card", "t0", max_new_tokens=64)
    second = sandbox.turn(session, "what is my balance", "t1", max_new_tokens=64)
    assert (first.text, second.text) == (
        "2 messages, last: I lost my card",
        "4 messages, last: what is my balance",
    )
    assert upstream.turns[-1]["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "I lost my card"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "what is my balance"},
    ]
    assert (first.intent.label, second.intent.label) == ("card_lost", "balance")
    assert 1 <= first.satisfaction.score <= 5 and not first.handover.decided
    assert first.finish_reason == wire.END and len(first.token_ids) == first.usage.generated_tokens > 0
    assert second.usage.prompt_tokens == prompt_tokens(upstream.turns[-1]["messages"])
    timings = second.timings
    assert 0 < timings.prefill_ns + timings.decode_ns < timings.total_ns
    assert 0 < timings.first_token_ns < timings.total_ns
    transcript = sandbox.stub.GetSession(wire.GetSessionRequest(session_id=session))
    assert [turn.reply.text for turn in transcript.turns] == [first.text, second.text]
    handed = sandbox.turn(session, "I want a human", "t2")
    assert handed.finish_reason == wire.HANDED_OVER and handed.state == wire.SESSION_HANDED_OVER
    assert len(upstream.turns) == 2


def test_counts_that_are_not_told_are_unset_on_the_wire(
    sandbox: SandboxProcess, upstream: ChatServer
) -> None:
    session = sandbox.open()
    upstream.behaviour = Behaviour(usage="last", token_ids=False, cached=lambda messages: 0)
    told = sandbox.turn(session, BALANCE).usage
    assert told.HasField("reused_tokens") and told.reused_tokens == 0
    upstream.behaviour = Behaviour(usage="last", token_ids=False)
    partly = sandbox.turn(session, BALANCE).usage
    assert partly.prompt_tokens > 0 and not partly.HasField("reused_tokens")
    upstream.behaviour = Behaviour(usage="none", token_ids=False)
    reply = sandbox.turn(session, BALANCE)
    assert reply.text and not reply.token_ids
    assert not any(
        reply.usage.HasField(name) for name in ("prompt_tokens", "reused_tokens", "generated_tokens")
    )


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (broken(500), "UNAVAILABLE"),
        (broken(429), "RESOURCE_EXHAUSTED"),
        (broken(400), "INVALID_ARGUMENT"),
        (broken(401), "UNAVAILABLE"),
        (Behaviour(delay_s=5), "UNAVAILABLE"),
        (Behaviour(breaks_after=2), "UNAVAILABLE"),
        (Behaviour(tail=(2, b"data: {\n\n")), "UNAVAILABLE"),
        (Behaviour(tail=(2, event({"error": {"message": "lost"}}))), "UNAVAILABLE"),
    ],
    ids=["500", "429", "400", "401", "silent", "cut", "not JSON", "error in the stream"],
)
def test_every_failure_has_its_status_and_leaves_the_session_as_it_was(
    sandbox: SandboxProcess, upstream: ChatServer, how: Behaviour, code: str
) -> None:
    session = sandbox.open()
    first = sandbox.turn(session, BALANCE, "t0")
    upstream.behaviour = how
    assert status_of(lambda: sandbox.turn(session, LOST, "t1")) is grpc.StatusCode[code]
    upstream.behaviour = Behaviour()
    assert [
        turn.turn_id for turn in sandbox.stub.GetSession(wire.GetSessionRequest(session_id=session)).turns
    ] == ["t0"]
    assert sandbox.turn(session, LOST, "t1").text == f"3 messages, last: {LOST}"
    assert upstream.turns[-1]["messages"][1]["content"] == first.text
    assert sandbox.status() == SERVING


def test_health_and_restart_of_the_endpoint(flow_folder: Path, tmp_path: Path) -> None:
    with serve(ChatServer()) as upstream:
        process = serving_command(options(upstream.url), tmp_path)
        server = process.__enter__()
        try:
            session = server.open()
            server.turn(session, BALANCE)
            upstream.stop()
            assert status_of(lambda: server.turn(session, LOST)) is grpc.StatusCode.UNAVAILABLE
            assert eventually(lambda: server.status() == NOT_SERVING, 10)
            upstream.start()
            assert eventually(lambda: server.status() == SERVING, 15)
            assert server.turn(session, LOST).turn_index == 1
            assert server.stop() == 0
        finally:
            process.__exit__(None, None, None)


REMOTE: dict[str, Any] = {"endpoint": "http://x/v1", "model": "m", "declare": "d", "api_key_env": None}
NONE: dict[str, Any] = dict.fromkeys(REMOTE)


@pytest.mark.parametrize(
    ("bundle", "engine", "values", "message"),
    [
        (None, None, {}, "BUNDLE: is missing"),
        (None, "openai", {}, "--endpoint: is missing"),
        (None, "openai", {**REMOTE, "declare": None}, "--declare: is missing"),
        ("bundle", None, {"endpoint": "http://x/v1"}, "--endpoint: belongs to --engine openai"),
        ("bundle", "onnx", {"api_key_env": "K"}, "--api-key-env: belongs to --engine openai"),
        ("bundle", "openai", REMOTE, "serves an --endpoint, not a bundle"),
        (None, "openai", {**REMOTE, "endpoint": "ftp://x"}, "http://HOST/v1"),
        (None, "openai", {**REMOTE, "endpoint": "http://user:secret@x/v1"}, "no user, password"),
        (None, "openai", {**REMOTE, "declare": "two words"}, "--declare: "),
        (None, "openai", {**REMOTE, "declare": "d\nx"}, "--declare: isn't a name"),
        (None, "openai", {**REMOTE, "model": ""}, "--model: is empty"),
        (None, "openai", {**REMOTE, "endpoint": "http://[::1/v1"}, "--endpoint: is no URL"),
        (None, "openai", {**REMOTE, "endpoint": "http://x:99999/v1"}, "--endpoint: is no URL"),
        (None, "openai", {**REMOTE, "endpoint": "http://x/v1?key=secret"}, "with --api-key-env"),
        (None, "openai", {**REMOTE, "api_key_env": "a-b"}, "--api-key-env: "),
    ],
)
def test_options_that_dont_go_together_are_refused(
    bundle: str | None, engine: str | None, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        served_model(Path(bundle) if bundle else None, engine, **{**NONE, **values}, endpoint_timeout_s=5.0)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_options_name_the_endpoint() -> None:
    ref = served_model(None, "openai", **REMOTE, endpoint_timeout_s=5.0)
    assert ref is not None and (ref.url, ref.model, ref.declare, ref.timeout_s) == (
        "http://x/v1",
        "m",
        "d",
        5.0,
    )
    assert served_model(Path("bundle"), "mindir", **NONE, endpoint_timeout_s=5.0) is None


def test_an_endpoint_that_cant_be_used_is_one_line_and_exit_code_2() -> None:
    for more, message in (
        ([], "nobody answers"),
        (["--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY isn't set"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "sandbox", "serve", *options("http://127.0.0.1:1/v1", *more)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2 and message in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr and done.stdout == ""


def test_neither_the_key_nor_text_reaches_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVED_KEY", "sk-very-secret")
    with (
        serve(ChatServer(Behaviour(key="sk-very-secret"))) as upstream,
        serving_command(options(upstream.url, "--api-key-env", "SERVED_KEY"), tmp_path) as server,
    ):
        session = server.open()
        server.turn(session, "confidential words")
        upstream.behaviour.key = "another"
        with pytest.raises(grpc.RpcError) as caught:
            server.turn(session, "confidential words")
        assert "very-secret" not in str(caught.value)
        assert server.stop() == 0
        log = server.log.read_text()
    assert "very-secret" not in log and "confidential" not in log
    assert "refuses the requests" in log


def test_sigterm_while_the_endpoint_is_tried_ends_in_order(tmp_path: Path) -> None:
    with serve(ChatServer(Behaviour(delay_s=60))) as upstream:
        process = subprocess.Popen(
            [sys.executable, "-m", "sandbox", "serve", *options(upstream.url)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert eventually(lambda: bool(upstream.requests), 30)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")


def test_the_ready_line_is_one_json_object(sandbox: SandboxProcess) -> None:
    assert set(json.loads(json.dumps(sandbox.ready))) == {
        "address",
        "model_digest",
        "declared_model",
        "metrics",
    }


def test_sigterm_ends_streams_after_the_grace_in_order(tmp_path: Path) -> None:
    with serve(ChatServer()) as upstream:
        with serving_command(options(upstream.url, "--grace-s", "0.3"), tmp_path) as server:
            upstream.behaviour = Behaviour(say=lambda messages: "word " * 400, delay_s=0.05)
            call = server.stream(server.open(), BALANCE, max_new_tokens=500)
            next(call)
            assert server.stop() == 0
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            assert "Traceback" not in server.log.read_text()
        assert eventually(lambda: upstream.left == 1, 10)
