"""Prompts, dropped turns and what a turn leaves behind, with an engine that answers from a list."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evalkit.bundle import load_bundle
from evalkit.chat import ChatRenderer
from sandbox.conversation import Conversations
from sandbox.domain import FinishReason, Sampling, TurnInput, TurnReply
from sandbox.engine.requests import EngineLoad, GenerationEnd, GenerationPiece, GenerationRequest
from sandbox.errors import EngineUnavailableError, InvalidRequestError
from sandbox.limits import Limits
from sandbox.sessions import Session, SessionStore

_SAMPLING = Sampling(max_new_tokens=8)

PAD, BOS, END, SYSTEM, USER, ASSISTANT = range(6)


class ScriptedEngine:
    """Answers with the given ids and remembers the prompts."""

    def __init__(self, replies: list[list[int]]) -> None:
        self.replies = replies
        self.prompts: list[list[int]] = []
        self.released: list[int] = []

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[AsyncIterator[GenerationPiece]]:
        self.prompts.append(list(request.prompt_ids))
        if not self.replies:
            raise EngineUnavailableError("down")
        yield self._pieces(self.replies.pop(0))

    async def _pieces(self, ids: list[int]) -> AsyncIterator[GenerationPiece]:
        for token in ids[:-1]:
            yield GenerationPiece((token,), "x")
        yield GenerationPiece((ids[-1],), "x", GenerationEnd(FinishReason.LENGTH, 0, 1, 2, 3))

    def release(self, cache_key: int) -> None:
        self.released.append(cache_key)

    def load(self) -> EngineLoad:
        return EngineLoad(0, 0, None, None, None, {})


class Bench:
    """Conversations over a scripted engine and the tiny bundle's tokenizer."""

    def __init__(self, bundle: Path, replies: list[list[int]], context: int = 256) -> None:
        self.tokenizer = load_bundle(bundle).tokenizer
        self.engine = ScriptedEngine(replies)
        limits = Limits(max_context_tokens=context)
        self.store = SessionStore(limits, self.engine.release)
        self.conversations = Conversations(
            self.store, self.engine, ChatRenderer(self.tokenizer), None, limits
        )

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode_ids(text, special=False)

    def turn(
        self, session: Session, text: str, turn_id: str = "", sampling: Sampling = _SAMPLING
    ) -> TurnReply:
        return asyncio.run(self._turn(TurnInput(session.session_id, turn_id, text, sampling)))

    async def _turn(self, turn: TurnInput) -> TurnReply:
        pieces = [piece async for piece in self.conversations.turn(turn)]
        reply = pieces[-1].reply
        assert reply is not None
        return reply


def test_s34_golden_prompts_of_one_two_and_three_turns(tiny_bundle: Path) -> None:
    bench = Bench(tiny_bundle, [[50, 51, END], [52, 53], [54]])
    session = bench.store.open("", "", "be kind", "en")
    for text in ("hello", "my name", "card"):
        bench.turn(session, text)
    first = [BOS, SYSTEM, *bench.ids("be kind"), END, USER, *bench.ids("hello"), END, ASSISTANT]
    second = [*first, 50, 51, END, USER, *bench.ids("my name"), END, ASSISTANT]
    third = [*second, 52, 53, END, USER, *bench.ids("card"), END, ASSISTANT]
    assert bench.engine.prompts == [first, second, third]


def test_s32_a_prompt_begins_with_all_that_was_said_and_generated_before(tiny_bundle: Path) -> None:
    """Token by token of the bytes of "hello": a re-encoding would merge them."""
    bench = Bench(tiny_bundle, [[*(bench_id for bench_id in range(40, 48))], [60]])
    session = bench.store.open("", "", "", "")
    bench.turn(session, "hello")
    bench.turn(session, "hello")
    one, two = bench.engine.prompts
    assert two[: len(one) + 8] == [*one, *range(40, 48)]


def test_s16_dropped_turns_are_reported_and_the_system_text_stays(tiny_bundle: Path) -> None:
    bench = Bench(tiny_bundle, [[60 + turn] * 8 for turn in range(8)], context=64)
    session = bench.store.open("", "", "be kind", "")
    replies = [bench.turn(session, f"card {turn}") for turn in range(8)]
    head = [BOS, SYSTEM, *bench.ids("be kind"), END, USER]
    assert all(prompt[: len(head)] == head for prompt in bench.engine.prompts)
    assert all(len(prompt) + 8 <= 64 for prompt in bench.engine.prompts)
    dropped = [reply.usage.dropped_turns for reply in replies]
    assert dropped[0] == 0 < dropped[-1]
    for turn, prompt in enumerate(bench.engine.prompts):
        kept = [earlier for earlier in range(turn) if 60 + earlier in prompt]
        assert kept == list(range(dropped[turn], turn))


def test_a_turn_too_long_by_itself_is_refused_and_says_so(tiny_bundle: Path) -> None:
    bench = Bench(tiny_bundle, [], context=64)
    session = bench.store.open("", "", "", "")
    with pytest.raises(InvalidRequestError, match="don't fit into 64"):
        bench.turn(session, "x y z " * 40)
    assert not session.busy


def test_s14_a_turn_that_died_leaves_no_trace_and_can_be_sent_again(tiny_bundle: Path) -> None:
    bench = Bench(tiny_bundle, [])
    session = bench.store.open("", "", "", "")
    with pytest.raises(EngineUnavailableError):
        bench.turn(session, "hello", "t1")
    bench.engine.replies.append([50])
    assert bench.turn(session, "hello", "t1").turn_index == 0
    assert bench.turn(session, "hello", "t1").turn_index == 0
    assert bench.engine.prompts[0] == bench.engine.prompts[1]
    assert len(bench.engine.prompts) == 2
    assert len(session.turns) == 1


def test_s14_an_id_is_repeated_only_for_what_was_asked_under_it(tiny_bundle: Path) -> None:
    bench = Bench(tiny_bundle, [[50]])
    session = bench.store.open("", "", "", "")
    reply = bench.turn(session, "hello", "t1")
    assert bench.turn(session, "hello", "t1") is reply
    for text, sampling, told in (
        ("goodbye", Sampling(8), "user_text"),
        ("hello", Sampling(9), "sampling.max_new_tokens"),
        ("hello", Sampling(8, temperature=0.5, seed=1), "sampling.temperature, sampling.seed"),
        ("hello", Sampling(8, top_k=2), "sampling.top_k"),
        ("hello", Sampling(8, top_p=0.5), "sampling.top_p"),
        ("goodbye", Sampling(8, stop=("secret",)), "user_text, sampling.stop"),
    ):
        with pytest.raises(InvalidRequestError, match=rf"'t1' was answered .* another {told}; send") as error:
            bench.turn(session, text, "t1", sampling)
        assert error.value.field == "turn_id"
    assert len(session.turns) == len(bench.engine.prompts) == 1
    bench.store.close(session)
    assert bench.turn(session, "hello", "t1") is reply


def test_closing_releases_the_cache(tiny_bundle: Path) -> None:
    bench = Bench(tiny_bundle, [])
    session = bench.store.open("", "", "", "")
    bench.store.close(session)
    assert bench.engine.released == [session.cache_key]


def test_a_remembered_rendering_holds_nothing_of_what_was_said(tiny_bundle: Path) -> None:
    tokenizer = load_bundle(tiny_bundle).tokenizer
    renderer = ChatRenderer(tokenizer)
    for said in ("hello", "my card", "您好", "hello"):
        fresh = ChatRenderer(tokenizer)
        assert renderer.opening("be kind", said) == fresh.opening("be kind", said)
        assert renderer.opening(None, said) == fresh.opening(None, said)
        assert renderer.next_turn([7, END], said) == fresh.next_turn([7, END], said)
        assert renderer.next_turn([7], said) == fresh.next_turn([7], said)
