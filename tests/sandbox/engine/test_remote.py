"""The remote engine against a real HTTP server: what it sends, what it makes of answers, and of every way to fail."""

import asyncio
import json
import socket
from dataclasses import replace

import pytest

from evalkit.chat import Message
from evalkit.errors import InputError
from sandbox.domain import FinishReason, Sampling
from sandbox.engine.remote import RemoteEngine, without_oldest_exchange
from sandbox.engine.supervisor import EngineState
from sandbox.errors import CapacityError, EngineUnavailableError, InvalidRequestError
from tests.sandbox.engine.remote_bench import HELLO, ask, endpoint, one, reference
from tests.support.chat_server import NAME, Behaviour, ChatServer, error, event, serve, token_id, tokens_of

__all__ = ["endpoint"]


def test_a_reply_streams_with_ids_usage_and_reuse(endpoint: ChatServer) -> None:
    endpoint.behaviour = Behaviour(cached=lambda messages: 3)
    found = ask(endpoint)
    assert found.text == "2 messages, last: my card is lost"
    assert found.ids == tuple(token_id(token) for token in tokens_of(found.text))
    end = found.end
    assert (end.finish_reason, end.prompt_tokens, end.reused_tokens) == (FinishReason.END, 10, 3)
    assert (end.generated_tokens, end.dropped_turns) == (len(found.ids), 0)
    assert end.prefill_ns > 0 and end.decode_ns > 0


def test_the_request_says_what_was_asked(endpoint: ChatServer) -> None:
    ask(
        endpoint,
        sampling=Sampling(16, temperature=0.699999988, top_k=40, top_p=0.5, seed=2**64 - 1, stop=("XX",)),
    )
    body = endpoint.turns[-1]
    assert body["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "my card is lost"},
    ]
    assert (body["model"], body["stream"], body["max_tokens"]) == (NAME, True, 16)
    assert (body["temperature"], body["top_k"], body["top_p"], body["seed"]) == (0.7, 40, 0.5, 2**63 - 1)
    assert "stop" not in body
    ask(endpoint)
    assert "top_k" not in endpoint.turns[-1]


@pytest.mark.parametrize(
    ("how", "field", "extras"),
    [
        (Behaviour(), "max_tokens", {"stream_options", "return_token_ids"}),
        (Behaviour(strict=True), "max_tokens", {"stream_options"}),
        (
            Behaviour(strict=True, length_fields=frozenset({"max_completion_tokens"})),
            "max_completion_tokens",
            {"stream_options"},
        ),
    ],
    ids=["vllm", "openai", "openai's newer models"],
)
def test_the_dialect_is_found_out(endpoint: ChatServer, how: Behaviour, field: str, extras: set[str]) -> None:
    endpoint.behaviour = how
    assert ask(endpoint).end.prompt_tokens == 10
    assert field in endpoint.turns[-1]
    assert extras == {"stream_options", "return_token_ids"} & set(endpoint.turns[-1])


@pytest.mark.parametrize("usage", ["none", "zeros"])
def test_what_the_server_does_not_tell_is_unknown_not_zero(endpoint: ChatServer, usage: str) -> None:
    endpoint.behaviour = Behaviour(usage=usage, token_ids=False)
    found = ask(endpoint)
    assert found.ids == () and found.text
    end = found.end
    assert (end.prompt_tokens, end.reused_tokens, end.generated_tokens) == (None, None, None)


def test_usage_without_details_leaves_reuse_unknown(endpoint: ChatServer) -> None:
    endpoint.behaviour = Behaviour(usage="last", token_ids=False)
    end = ask(endpoint).end
    assert (end.prompt_tokens, end.reused_tokens, end.generated_tokens) == (10, None, 7)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", FinishReason.END),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CANCELLED),
        ("tool_calls", FinishReason.END),
    ],
)
def test_finish_reasons(endpoint: ChatServer, reason: str, expected: FinishReason) -> None:
    endpoint.behaviour = Behaviour(reason=reason)
    assert ask(endpoint).end.finish_reason is expected


def test_max_tokens_end_a_reply(endpoint: ChatServer) -> None:
    found = ask(endpoint, sampling=Sampling(3))
    assert (found.text, found.end.finish_reason) == ("2 messages, last:", FinishReason.LENGTH)
    assert found.end.generated_tokens == 3


def test_a_missing_done_is_no_fault_when_the_reason_came(endpoint: ChatServer) -> None:
    endpoint.behaviour = Behaviour(done=False)
    assert ask(endpoint).end.finish_reason is FinishReason.END


CHUNK = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"", "ended without a finish_reason"),
        (b"data: [DONE]\n\n", "ended without a finish_reason"),
        (b"data: {not json\n\n", "isn't JSON"),
        (b"data: [1]\n\n", "isn't a JSON object"),
        (b"<html>\n\n", "no server-sent event"),
        (b"data: \xff\xfe\n\n", "isn't UTF-8"),
        (b'data: {"choices": "x"}\n\n', "no list of choices"),
        (b'data: {"choices": [{}]}\n\n', "no delta"),
        (event({"choices": [{"delta": {"content": [1]}}]}), "isn't text"),
        (event({"error": {"message": "CUDA out of memory", "code": 500}}), "CUDA out of memory"),
        (event({"object": "error", "message": "aborted"}), "aborted"),
        (event({"choices": [{"delta": {}, "finish_reason": "abort"}]}), "finish_reason abort"),
        (event(CHUNK)[:-9], "isn't JSON"),
        (b"data: " + b"x" * (1 << 21), "longer than"),
        ((b"data: " + b"x" * 1000 + b"\n") * 1100, "longer than"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "isn't JSON"),
        (b'data: {"choices": [{"delta": {"content": "\\ud83d \\ude00"}}]}\n\n', "half a character"),
        (
            b'data: {"choices": [{"delta": {"content": "x\\ud83d"}, "finish_reason": "stop"}]}\n\n',
            "half a character",
        ),
        (b'data: {"error": {"message": "no \\ud83d"}}\n\n', r"no \?"),
        (event({"choices": [{"index": 1, "delta": {"content": "y"}}]}), "another choice"),
    ],
)
def test_a_broken_stream_is_unavailable(endpoint: ChatServer, tail: bytes, message: str) -> None:
    def breaks() -> None:
        endpoint.behaviour = Behaviour(tail=(2, tail))

    with pytest.raises(EngineUnavailableError, match=message):
        ask(endpoint, after_start=breaks)


def test_a_connection_that_breaks_in_the_middle_is_unavailable(endpoint: ChatServer) -> None:
    def breaks() -> None:
        endpoint.behaviour = Behaviour(breaks_after=2)

    with pytest.raises(EngineUnavailableError, match="broke off"):
        ask(endpoint, after_start=breaks)


def test_a_character_whose_halves_come_in_two_chunks_is_whole(endpoint: ChatServer) -> None:
    """JSON escapes a character beyond U+FFFF as two halves, and some servers part them."""
    halves = [
        b'{"choices": [{"delta": {"content": "%s"}, "finish_reason": %s}]}' % half
        for half in (
            (b"so \\ud83d", b"null"),
            (b"", b"null"),
            (b"\\ude00!", b'"stop"'),
        )
    ]

    def parts() -> None:
        endpoint.behaviour = Behaviour(tail=(0, b"".join(b"data: %s\n\n" % half for half in halves)))

    assert ask(endpoint, after_start=parts).text == "so \U0001f600!"


def test_tokens_are_not_counted_by_ids_that_came_for_a_part_of_the_text(endpoint: ChatServer) -> None:
    chunks = [
        {"choices": [{"delta": {"content": "my card"}, "token_ids": [5, "6"]}]},
        {"choices": [{"delta": {"content": " is lost"}, "token_ids": [7, 8]}]},
        {
            "choices": [{"delta": {}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 4},
        },
    ]

    def some() -> None:
        endpoint.behaviour = Behaviour(tail=(0, b"".join(map(event, chunks))))

    assert ask(endpoint, after_start=some).end.generated_tokens == 4
    del chunks[2]["usage"]  # what is left was told before the first token: 0
    assert ask(endpoint, after_start=some).end.generated_tokens is None


def test_an_empty_stream_says_so(endpoint: ChatServer) -> None:
    """llama-cpp-python answers a conversation that is too long with HTTP 200 and nothing."""
    nothing = (200, {"Content_Type": "text/event-stream"}, b"")

    def empties() -> None:
        endpoint.behaviour = Behaviour(intercept=lambda number, body: nothing)

    with pytest.raises(EngineUnavailableError, match="held nothing; is the conversation too long"):
        ask(endpoint, after_start=empties)


def test_more_text_than_max_tokens_allows_is_refused(endpoint: ChatServer) -> None:
    def floods() -> None:
        endpoint.behaviour = Behaviour(say=lambda messages: "y" * 5000)

    with pytest.raises(EngineUnavailableError, match="far more text"):
        ask(endpoint, after_start=floods, sampling=Sampling(4))


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (500, EngineUnavailableError, "HTTP 500: oh"),
        (503, EngineUnavailableError, "HTTP 503: oh"),
        (408, EngineUnavailableError, "HTTP 408: oh"),
        (401, EngineUnavailableError, "doesn't accept the API key"),
        (404, EngineUnavailableError, "doesn't know this address or model"),
        (418, EngineUnavailableError, "HTTP 418: oh"),
        (400, InvalidRequestError, "refuses the request .HTTP 400: oh"),
        (422, InvalidRequestError, "HTTP 422: oh"),
        (0, EngineUnavailableError, "broke off"),
    ],
)
def test_error_answers(endpoint: ChatServer, status: int, kind: type[Exception], message: str) -> None:
    def fails() -> None:
        endpoint.behaviour = Behaviour(intercept=lambda number, body: error(status, "oh"))

    with pytest.raises(kind, match=message):
        ask(endpoint, after_start=fails)


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"error": {"message": "bad \\ud800"}}'], ids=["deep", "half a character"]
)
@pytest.mark.parametrize("status", [400, 500])
def test_an_error_that_cannot_be_read_is_still_one_of_the_endpoint(
    endpoint: ChatServer, status: int, body: bytes
) -> None:
    def fails() -> None:
        endpoint.behaviour = Behaviour(intercept=lambda number, asked: (status, {}, body))

    with pytest.raises((EngineUnavailableError, InvalidRequestError), match=f"HTTP {status}") as caught:
        ask(endpoint, after_start=fails)
    assert str(caught.value).encode()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), (None, 1.0), ("inf", 1.0), ("nan", 1.0), ("-5", 0.0), ("9" * 30, 86_400.0)],
)
def test_too_many_requests_keep_the_time_to_wait(
    endpoint: ChatServer, header: str | None, seconds: float
) -> None:
    def busy() -> None:
        headers = {} if header is None else {"Retry_After": header}
        endpoint.behaviour = Behaviour(intercept=lambda number, body: error(429, "slow down", **headers))

    with pytest.raises(CapacityError, match="slow down") as caught:
        ask(endpoint, after_start=busy)
    assert caught.value.retry_after_s == seconds and caught.value.reason == "ENDPOINT_BUSY"


def test_a_silent_server_is_unavailable_after_the_timeout(endpoint: ChatServer) -> None:
    def sleeps() -> None:
        endpoint.behaviour = Behaviour(delay_s=3)

    with pytest.raises(EngineUnavailableError, match="nothing for 1 s"):
        ask(endpoint, after_start=sleeps, timeout_s=1)


def test_an_answer_that_is_no_stream_is_unavailable(endpoint: ChatServer) -> None:
    def plain() -> None:
        endpoint.behaviour = Behaviour(intercept=lambda number, body: (200, {}, b'{"choices": []}'))

    with pytest.raises(EngineUnavailableError, match="instead of an event stream"):
        ask(endpoint, after_start=plain)


def test_the_key_is_sent_and_never_repeated(endpoint: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVED_KEY", "sk-very-secret")
    endpoint.behaviour = Behaviour(key="sk-very-secret")
    assert ask(endpoint, api_key_env="SERVED_KEY").text
    assert endpoint.headers[-1]["Authorization"] == "Bearer sk-very-secret"
    endpoint.behaviour.key = "another"
    with pytest.raises(InputError, match="doesn't accept the API key") as caught:
        ask(endpoint, api_key_env="SERVED_KEY")
    assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (Behaviour(intercept=lambda number, body: error(503, "loading")), "unwell .HTTP 503: loading"),
        (Behaviour(intercept=lambda number, body: error(400, "no streaming here")), "no streaming here"),
        (Behaviour(intercept=lambda number, body: error(404, "Not Found")), "address or model"),
        (Behaviour(intercept=lambda number, body: error(429, "full", Retry_After="900")), "HTTP 429: full"),
        (Behaviour(tail=(0, b"data: {\n\n")), "no streamed chat completion"),
    ],
)
def test_an_endpoint_that_does_not_fit_is_refused_at_the_start(
    endpoint: ChatServer, how: Behaviour, message: str
) -> None:
    endpoint.behaviour = how
    with pytest.raises(InputError, match=message):
        ask(endpoint)


def test_a_busy_endpoint_is_asked_again_at_the_start(
    endpoint: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.engine.remote_dialect._FIRST_WAIT_S", 0.01)
    endpoint.behaviour = Behaviour(intercept=lambda number, body: error(429, "full") if number < 3 else None)
    assert ask(endpoint).text


def test_nobody_there_is_an_input_error_at_the_start() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        with pytest.raises(InputError, match="nobody answers"):
            ask(ChatServer(url=url))


def test_health_follows_an_endpoint_that_goes_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.engine.remote._CHECK_INTERVAL_S", 0.02)
    states: list[EngineState] = []

    async def run() -> None:
        with serve(ChatServer()) as endpoint:
            engine = RemoteEngine(reference(endpoint.url), connections=4, on_state=states.append)
            await engine.connect()
            await engine.start()
            assert (await one(engine, HELLO, Sampling(8))).text
        watch = asyncio.create_task(engine.run())
        with pytest.raises(EngineUnavailableError, match="nobody answers"):
            await one(engine, HELLO, Sampling(8))
        await asyncio.sleep(0.1)
        assert states == [EngineState.READY, EngineState.STARTING]
        watch.cancel()
        await engine.close()
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            await one(engine, HELLO, Sampling(8))

    asyncio.run(run())


def test_the_context_length_is_read_where_the_server_tells_it(endpoint: ChatServer) -> None:
    async def length() -> int:
        engine = RemoteEngine(reference(endpoint.url), connections=1, on_state=lambda state: None)
        await engine.connect()
        await engine.close()
        return engine.max_context_tokens

    assert asyncio.run(length()) == 0
    endpoint.behaviour = replace(endpoint.behaviour, max_model_len=4096)
    assert asyncio.run(length()) == 4096


def test_without_oldest_exchange() -> None:
    system, user, reply = Message("system", "s"), Message("user", "u"), Message("assistant", "a")
    assert without_oldest_exchange([system, user, reply, user]) == [system, user]
    assert without_oldest_exchange([user, reply, user, reply, user]) == [user, reply, user]
    assert without_oldest_exchange([system, user]) is None
    assert without_oldest_exchange([user]) is None


def test_requests_are_plain_json(endpoint: ChatServer) -> None:
    ask(endpoint, (Message("user", 'quotes " and \\ and 您好 \u2028'),))
    assert (
        json.loads(json.dumps(endpoint.turns[-1]))["messages"][0]["content"]
        == 'quotes " and \\ and 您好 \u2028'
    )
