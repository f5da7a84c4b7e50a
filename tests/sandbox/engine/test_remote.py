"""The remote engine against a real HTTP server: what it sends, what it makes of answers, and of every way to fail."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from evalkit.chat import Message
from evalkit.errors import InputError
from evalkit.scenario.model_schema import EndpointRef
from sandbox.domain import FinishReason, Sampling
from sandbox.engine.remote import RemoteEngine, without_oldest_exchange
from sandbox.engine.requests import GenerationEnd, GenerationPiece, GenerationRequest
from sandbox.engine.supervisor import EngineState
from sandbox.errors import CapacityError, EngineUnavailableError, InvalidRequestError
from tests.support.chat_server import (
    NAME,
    Behaviour,
    ChatServer,
    error,
    event,
    prompt_tokens,
    serve,
    token_id,
    tokens_of,
)

HELLO = (Message("system", "be kind"), Message("user", "my card is lost"))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serve(ChatServer()) as running:
        yield running


def reference(url: str, **more: Any) -> EndpointRef:
    return EndpointRef.model_validate(
        {"endpoint": url, "model": NAME, "declare": "m-1", "timeout_s": 5, **more}
    )


class Outcome:
    """A finished generation."""

    def __init__(self, pieces: list[GenerationPiece]) -> None:
        self.text = "".join(piece.text for piece in pieces)
        self.ids = tuple(token for piece in pieces for token in piece.token_ids)
        ends = [piece.end for piece in pieces if piece.end is not None]
        assert len(ends) == 1 and pieces[-1].end is ends[0]
        self.end: GenerationEnd = ends[0]


def ask(
    server: ChatServer,
    messages: tuple[Message, ...] = HELLO,
    sampling: Sampling = Sampling(max_new_tokens=64),  # noqa: B008
    after_start: Callable[[], None] = lambda: None,
    **ref: Any,
) -> Outcome:
    """One generation by a new engine; `after_start` runs when the engine knows its endpoint."""

    async def run() -> Outcome:
        engine = RemoteEngine(reference(server.url, **ref), connections=4, on_state=lambda state: None)
        await engine.connect()
        await engine.start()
        after_start()
        try:
            return await one(engine, messages, sampling)
        finally:
            assert engine.load().running == 0
            await engine.close()

    return asyncio.run(run())


async def one(
    engine: RemoteEngine, messages: tuple[Message, ...], sampling: Sampling, key: int = 1
) -> Outcome:
    request = GenerationRequest(key, (), sampling, messages=messages)
    async with engine.generate(request) as pieces:
        return Outcome([piece async for piece in pieces])


def test_a_reply_streams_with_ids_usage_and_reuse(server: ChatServer) -> None:
    server.behaviour = Behaviour(cached=lambda messages: 3)
    found = ask(server)
    assert found.text == "2 messages, last: my card is lost"
    assert found.ids == tuple(token_id(token) for token in tokens_of(found.text))
    end = found.end
    assert (end.finish_reason, end.prompt_tokens, end.reused_tokens) == (FinishReason.END, 10, 3)
    assert (end.generated_tokens, end.dropped_turns) == (len(found.ids), 0)
    assert end.prefill_ns > 0 and end.decode_ns > 0


def test_the_request_says_what_was_asked(server: ChatServer) -> None:
    ask(
        server,
        sampling=Sampling(16, temperature=0.699999988, top_k=40, top_p=0.5, seed=2**64 - 1, stop=("XX",)),
    )
    body = server.turns[-1]
    assert body["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "my card is lost"},
    ]
    assert (body["model"], body["stream"], body["max_tokens"]) == (NAME, True, 16)
    assert (body["temperature"], body["top_k"], body["top_p"], body["seed"]) == (0.7, 40, 0.5, 2**63 - 1)
    assert "stop" not in body
    ask(server)
    assert "top_k" not in server.turns[-1]


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
def test_the_dialect_is_found_out(server: ChatServer, how: Behaviour, field: str, extras: set[str]) -> None:
    server.behaviour = how
    assert ask(server).end.prompt_tokens == 10
    assert field in server.turns[-1]
    assert extras == {"stream_options", "return_token_ids"} & set(server.turns[-1])


@pytest.mark.parametrize("usage", ["none", "zeros"])
def test_what_the_server_does_not_tell_is_unknown_not_zero(server: ChatServer, usage: str) -> None:
    server.behaviour = Behaviour(usage=usage, token_ids=False)
    found = ask(server)
    assert found.ids == () and found.text
    end = found.end
    assert (end.prompt_tokens, end.reused_tokens, end.generated_tokens) == (None, None, None)


def test_usage_without_details_leaves_reuse_unknown(server: ChatServer) -> None:
    server.behaviour = Behaviour(usage="last", token_ids=False)
    end = ask(server).end
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
def test_finish_reasons(server: ChatServer, reason: str, expected: FinishReason) -> None:
    server.behaviour = Behaviour(reason=reason)
    assert ask(server).end.finish_reason is expected


def test_max_tokens_end_a_reply(server: ChatServer) -> None:
    found = ask(server, sampling=Sampling(3))
    assert (found.text, found.end.finish_reason) == ("2 messages, last:", FinishReason.LENGTH)
    assert found.end.generated_tokens == 3


@pytest.mark.parametrize("stop", ["card is", "rd i", "lost"])
def test_s36_a_stop_string_over_token_boundaries_is_cut_and_ends_the_stream(
    server: ChatServer, stop: str
) -> None:
    """S36: the reason is certain, no part of the stop string is shown, and the server's work ends."""
    whole = "2 messages, last: my card is lost"
    found = ask(server, sampling=Sampling(64, stop=(stop,)))
    assert found.text == whole[: whole.index(stop)]
    assert found.end.finish_reason is FinishReason.STOP_STRING
    assert found.end.prompt_tokens == 10
    without = ask(server, sampling=Sampling(64, stop=("lostx",)))
    assert (without.text, without.end.finish_reason) == (whole, FinishReason.END)


def test_s35_line_separators_and_cjk_inside_a_reply_survive(server: ChatServer) -> None:
    """S35: U+2028, U+0085 and form feeds are text, not ends of lines of the stream."""
    said = "您好\u2028第二行\u0085 third\x0cfourth 😀 é"
    server.behaviour = Behaviour(say=lambda messages: said)
    assert ask(server).text == said


def test_a_missing_done_is_no_fault_when_the_reason_came(server: ChatServer) -> None:
    server.behaviour = Behaviour(done=False)
    assert ask(server).end.finish_reason is FinishReason.END


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
    ],
)
def test_a_broken_stream_is_unavailable(server: ChatServer, tail: bytes, message: str) -> None:
    def breaks() -> None:
        server.behaviour = Behaviour(tail=(2, tail))

    with pytest.raises(EngineUnavailableError, match=message):
        ask(server, after_start=breaks)


def test_a_connection_that_breaks_in_the_middle_is_unavailable(server: ChatServer) -> None:
    def breaks() -> None:
        server.behaviour = Behaviour(breaks_after=2)

    with pytest.raises(EngineUnavailableError, match="broke off"):
        ask(server, after_start=breaks)


def test_more_text_than_max_tokens_allows_is_refused(server: ChatServer) -> None:
    def floods() -> None:
        server.behaviour = Behaviour(say=lambda messages: "y" * 5000)

    with pytest.raises(EngineUnavailableError, match="far more text"):
        ask(server, after_start=floods, sampling=Sampling(4))


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
def test_error_answers(server: ChatServer, status: int, kind: type[Exception], message: str) -> None:
    def fails() -> None:
        server.behaviour = Behaviour(intercept=lambda number, body: error(status, "oh"))

    with pytest.raises(kind, match=message):
        ask(server, after_start=fails)


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), (None, None)])
def test_too_many_requests_keep_the_time_to_wait(
    server: ChatServer, header: str | None, seconds: float | None
) -> None:
    def busy() -> None:
        headers = {} if header is None else {"Retry_After": header}
        server.behaviour = Behaviour(intercept=lambda number, body: error(429, "slow down", **headers))

    with pytest.raises(CapacityError, match="slow down") as caught:
        ask(server, after_start=busy)
    if seconds is not None:
        assert caught.value.retry_after_s == seconds


def test_a_silent_server_is_unavailable_after_the_timeout(server: ChatServer) -> None:
    def sleeps() -> None:
        server.behaviour = Behaviour(delay_s=3)

    with pytest.raises(EngineUnavailableError, match=r"nothing for 0\.3 s"):
        ask(server, after_start=sleeps, timeout_s=0.3)


def test_an_answer_that_is_no_stream_is_unavailable(server: ChatServer) -> None:
    def plain() -> None:
        server.behaviour = Behaviour(intercept=lambda number, body: (200, {}, b'{"choices": []}'))

    with pytest.raises(EngineUnavailableError, match="instead of an event stream"):
        ask(server, after_start=plain)


def test_the_key_is_sent_and_never_repeated(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVED_KEY", "sk-very-secret")
    server.behaviour = Behaviour(key="sk-very-secret")
    assert ask(server, api_key_env="SERVED_KEY").text
    assert server.headers[-1]["Authorization"] == "Bearer sk-very-secret"
    server.behaviour.key = "another"
    with pytest.raises(InputError, match="doesn't accept the API key") as caught:
        ask(server, api_key_env="SERVED_KEY")
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
    server: ChatServer, how: Behaviour, message: str
) -> None:
    server.behaviour = how
    with pytest.raises(InputError, match=message):
        ask(server)


def test_a_busy_endpoint_is_asked_again_at_the_start(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.engine.remote_dialect._FIRST_WAIT_S", 0.01)
    server.behaviour = Behaviour(intercept=lambda number, body: error(429, "full") if number < 3 else None)
    assert ask(server).text


def test_nobody_there_is_an_input_error_at_the_start() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        with pytest.raises(InputError, match="nobody answers"):
            ask(ChatServer(url=url))


def test_s16_a_context_overflow_drops_the_oldest_exchanges_and_says_so(server: ChatServer) -> None:
    """S16: exactly as many as needed; the system text and the last message stay."""
    history = [
        Message(role, f"{role} {number} says five words")
        for number in range(4)
        for role in ("user", "assistant")
    ]
    messages = (Message("system", "be kind"), *history, Message("user", "and now?"))
    server.behaviour = Behaviour(context=4 + 4 + 2 * 2 * 7 + 16)
    found = ask(server, messages, Sampling(16))
    assert found.end.dropped_turns == 2
    sent = server.turns[-1]["messages"]
    assert [message["content"] for message in sent] == [
        "be kind",
        *(message.content for message in history[4:]),
        "and now?",
    ]
    assert found.end.prompt_tokens == prompt_tokens(sent)


def test_s16_a_text_too_long_by_itself_is_refused(server: ChatServer) -> None:
    server.behaviour = Behaviour(context=20)
    with pytest.raises(InvalidRequestError, match=r"too long for the endpoint.*maximum context length is 20"):
        ask(server, (Message("system", "s"), Message("user", "word " * 30)), Sampling(4))


def test_s16_a_server_that_cuts_the_conversation_in_silence_is_refused(server: ChatServer) -> None:
    """S16: ollama #14259: the prompt is cut to the context, and the answer looks like any other."""

    async def run() -> None:
        engine = RemoteEngine(reference(server.url), connections=4, on_state=lambda state: None)
        await engine.connect()
        await engine.start()
        server.behaviour.keeps = 12
        first = (Message("user", "a long text of more words than that server ever reads at once"),)
        assert (await one(engine, first, Sampling(8))).end.prompt_tokens == 12
        second = (*first, Message("assistant", "yes"), Message("user", "go on"))
        with pytest.raises(InvalidRequestError, match="cut the conversation without saying so"):
            await one(engine, second, Sampling(8))
        assert (await one(engine, first, Sampling(8), key=2)).text
        await engine.close()

    asyncio.run(run())


def test_s18_leaving_a_reply_ends_the_servers_work(server: ChatServer) -> None:
    """S18: the connection is closed at once, so that the server sees that nobody reads any more."""

    async def run() -> None:
        engine = RemoteEngine(reference(server.url), connections=4, on_state=lambda state: None)
        await engine.connect()
        await engine.start()
        server.behaviour = Behaviour(say=lambda messages: "word " * 500, delay_s=0.01)
        async with engine.generate(GenerationRequest(1, (), Sampling(500), messages=HELLO)) as pieces:
            async for _ in pieces:
                break
        assert engine.load().running == 0
        for _ in range(100):
            if server.left:
                break
            await asyncio.sleep(0.02)
        assert server.left == 1 and server.tokens_sent < 50
        server.behaviour = Behaviour()
        assert (await one(engine, HELLO, Sampling(8))).text
        await engine.close()

    asyncio.run(run())


def test_health_follows_an_endpoint_that_goes_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.engine.remote._CHECK_INTERVAL_S", 0.02)
    states: list[EngineState] = []

    async def run() -> None:
        with serve(ChatServer()) as server:
            engine = RemoteEngine(reference(server.url), connections=4, on_state=states.append)
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


def test_the_context_length_is_read_where_the_server_tells_it(server: ChatServer) -> None:
    async def length() -> int:
        engine = RemoteEngine(reference(server.url), connections=1, on_state=lambda state: None)
        await engine.connect()
        await engine.close()
        return engine.max_context_tokens

    assert asyncio.run(length()) == 0
    server.behaviour = replace(server.behaviour, max_model_len=4096)
    assert asyncio.run(length()) == 4096


def test_without_oldest_exchange() -> None:
    system, user, reply = Message("system", "s"), Message("user", "u"), Message("assistant", "a")
    assert without_oldest_exchange([system, user, reply, user]) == [system, user]
    assert without_oldest_exchange([user, reply, user, reply, user]) == [user, reply, user]
    assert without_oldest_exchange([system, user]) is None
    assert without_oldest_exchange([user]) is None


def test_requests_are_plain_json(server: ChatServer) -> None:
    ask(server, (Message("user", 'quotes " and \\ and 您好 \u2028'),))
    assert (
        json.loads(json.dumps(server.turns[-1]))["messages"][0]["content"]
        == 'quotes " and \\ and 您好 \u2028'
    )
