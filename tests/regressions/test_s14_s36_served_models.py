"""S14-S36 where somebody else generates: retries, cancels, waiting times, cut conversations, stop strings, characters."""

import asyncio
import time

import grpc
import pytest

from evalkit.chat import Message
from evalkit.replay.client import Sampling as ClientSampling
from evalkit.replay.client import SandboxClient, SandboxError
from evalkit.wire import sandbox_pb2 as wire
from sandbox.domain import FinishReason, Sampling
from sandbox.engine.remote import RemoteEngine
from sandbox.engine.requests import GenerationRequest
from sandbox.errors import InvalidRequestError
from tests.sandbox.engine.remote_bench import HELLO, ask, endpoint, one, reference
from tests.sandbox.processes import SandboxProcess, eventually, status_of
from tests.sandbox.served_models import BALANCE, LOST, broken
from tests.support.chat_server import Behaviour, ChatServer, error, prompt_tokens

__all__ = ["endpoint"]

SAMPLING = ClientSampling(max_new_tokens=64)


def test_s23_the_endpoints_time_to_wait_reaches_the_client_which_keeps_to_it(
    sandbox: SandboxProcess, upstream: ChatServer
) -> None:
    """S23: 429 becomes RESOURCE_EXHAUSTED with RetryInfo, and the typed client comes back after it."""
    upstream.behaviour = Behaviour(
        intercept=lambda number, body: error(429, "slow down", Retry_After="1") if number == 2 else None
    )
    with SandboxClient(sandbox.address) as client:
        client.open("s23", "en")
        client.turn("s23", "t0", BALANCE, SAMPLING, timeout_s=20)
        started = time.monotonic()
        assert client.turn("s23", "t1", LOST, SAMPLING, timeout_s=20).turn_index == 1
        assert time.monotonic() - started >= 1.0
        upstream.behaviour = broken(429, Retry_After="3600")
        with pytest.raises(SandboxError) as caught:
            client.turn("s23", "t2", LOST, SAMPLING, timeout_s=20)
    assert caught.value.code == "RESOURCE_EXHAUSTED" and caught.value.details.retry_after_s == 3600
    assert caught.value.details.reason and caught.value.details.request_id


def test_s14_a_retry_after_a_broken_stream_adds_no_user_turn(
    sandbox: SandboxProcess, upstream: ChatServer
) -> None:
    """S14: the client asks again with the same turn_id; the conversation holds the turn once."""
    cut = Behaviour(breaks_after=2)
    with SandboxClient(sandbox.address) as client:
        client.open("s14", "en")
        upstream.behaviour = cut

        def mend(number: int, body: object) -> None:
            if number >= 2:
                cut.breaks_after = None

        cut.intercept = mend  # type: ignore[assignment]
        reply = client.turn("s14", "t0", BALANCE, SAMPLING, timeout_s=20)
        assert reply.text == f"1 messages, last: {BALANCE}" and len(upstream.turns) == 2
        assert client.turn("s14", "t1", LOST, SAMPLING, timeout_s=20).text == f"3 messages, last: {LOST}"
        assert len(client.transcript("s14").turns) == 2


def test_s18_cancels_and_deadlines_end_the_endpoints_work(
    sandbox: SandboxProcess, upstream: ChatServer
) -> None:
    """S18, S22: streamed and unary; the deadline is the caller's, and the session takes the next turn at once."""
    upstream.behaviour = Behaviour(say=lambda messages: "word " * 400, delay_s=0.02)
    left = upstream.left
    session = sandbox.open()
    call = sandbox.stream(session, BALANCE, max_new_tokens=500)
    next(call)
    call.cancel()
    assert eventually(lambda: upstream.left == left + 1, 10)
    unary = sandbox.stub.Turn.future(
        wire.TurnRequest(
            session_id=sandbox.open(), user_text="x", sampling=wire.Sampling(max_new_tokens=500)
        ),
        timeout=0.5,
    )
    assert unary.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert eventually(lambda: upstream.left == left + 2, 10)
    upstream.behaviour = Behaviour()
    assert eventually(lambda: status_of(lambda: sandbox.turn(session, BALANCE)) is grpc.StatusCode.OK, 10)


def test_s16_dropped_turns_are_reported_by_a_served_model_too(
    sandbox: SandboxProcess, upstream: ChatServer
) -> None:
    """S16: the endpoint's refusal makes the server drop the oldest turns, and every reply says how many."""
    upstream.behaviour = Behaviour(context=60)
    session = sandbox.open(system_text="be kind")
    replies = [sandbox.turn(session, (BALANCE, LOST)[number % 2], max_new_tokens=16) for number in range(6)]
    dropped = [reply.usage.dropped_turns for reply in replies]
    assert dropped[0] == 0 < dropped[-1] and dropped == sorted(dropped)
    assert all(body["messages"][0]["content"] == "be kind" for body in upstream.turns)


@pytest.mark.parametrize("stop", ["card is", "rd i", "lost"])
def test_s36_a_stop_string_over_token_boundaries_is_cut_and_ends_the_stream(
    endpoint: ChatServer, stop: str
) -> None:
    """S36: the reason is certain, no part of the stop string is shown, and the server's work ends."""
    whole = "2 messages, last: my card is lost"
    found = ask(endpoint, sampling=Sampling(64, stop=(stop,)))
    assert found.text == whole[: whole.index(stop)]
    assert found.end.finish_reason is FinishReason.STOP_STRING
    assert found.end.prompt_tokens == 10
    without = ask(endpoint, sampling=Sampling(64, stop=("lostx",)))
    assert (without.text, without.end.finish_reason) == (whole, FinishReason.END)


def test_s35_line_separators_and_cjk_inside_a_reply_survive(endpoint: ChatServer) -> None:
    """S35: U+2028, U+0085 and form feeds are text, not ends of lines of the stream."""
    said = "您好\u2028第二行\u0085 third\x0cfourth 😀 é"
    endpoint.behaviour = Behaviour(say=lambda messages: said)
    assert ask(endpoint).text == said


def test_s16_a_context_overflow_drops_the_oldest_exchanges_and_says_so(endpoint: ChatServer) -> None:
    """S16: exactly as many as needed; the system text and the last message stay."""
    history = [
        Message(role, f"{role} {number} says five words")
        for number in range(4)
        for role in ("user", "assistant")
    ]
    messages = (Message("system", "be kind"), *history, Message("user", "and now?"))
    endpoint.behaviour = Behaviour(context=4 + 4 + 2 * 2 * 7 + 16)
    found = ask(endpoint, messages, Sampling(16))
    assert found.end.dropped_turns == 2
    sent = endpoint.turns[-1]["messages"]
    assert [message["content"] for message in sent] == [
        "be kind",
        *(message.content for message in history[4:]),
        "and now?",
    ]
    assert found.end.prompt_tokens == prompt_tokens(sent)


def test_s16_a_text_too_long_by_itself_is_refused(endpoint: ChatServer) -> None:
    endpoint.behaviour = Behaviour(context=20)
    with pytest.raises(InvalidRequestError, match=r"too long for the endpoint.*maximum context length is 20"):
        ask(endpoint, (Message("system", "s"), Message("user", "word " * 30)), Sampling(4))


def test_s16_a_server_that_cuts_the_conversation_in_silence_is_refused(endpoint: ChatServer) -> None:
    """S16: ollama #14259: the prompt is cut to the context, and the answer looks like any other."""

    async def run() -> None:
        engine = RemoteEngine(reference(endpoint.url), connections=4, on_state=lambda state: None)
        await engine.connect()
        await engine.start()
        endpoint.behaviour.keeps = 12
        first = (Message("user", "a long text of more words than that server ever reads at once"),)
        assert (await one(engine, first, Sampling(8))).end.prompt_tokens == 12
        second = (*first, Message("assistant", "yes"), Message("user", "go on"))
        with pytest.raises(InvalidRequestError, match="cut the conversation without saying so"):
            await one(engine, second, Sampling(8))
        assert (await one(engine, first, Sampling(8), key=2)).text
        await engine.close()

    asyncio.run(run())


def test_s18_leaving_a_reply_ends_the_servers_work(endpoint: ChatServer) -> None:
    """S18: the connection is closed at once, so that the server sees that nobody reads any more."""

    async def run() -> None:
        engine = RemoteEngine(reference(endpoint.url), connections=4, on_state=lambda state: None)
        await engine.connect()
        await engine.start()
        endpoint.behaviour = Behaviour(say=lambda messages: "word " * 500, delay_s=0.01)
        async with engine.generate(GenerationRequest(1, (), Sampling(500), messages=HELLO)) as pieces:
            async for _ in pieces:
                break
        assert engine.load().running == 0
        for _ in range(100):
            if endpoint.left:
                break
            await asyncio.sleep(0.02)
        assert endpoint.left == 1 and endpoint.tokens_sent < 50
        endpoint.behaviour = Behaviour()
        assert (await one(engine, HELLO, Sampling(8))).text
        await engine.close()

    asyncio.run(run())
