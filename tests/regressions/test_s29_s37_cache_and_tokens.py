"""S29-S37 on the real server: what is reused is right, what is generated is kept, what is streamed is whole."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from evalkit.bundle import load_bundle
from evalkit.chat import ChatRenderer
from evalkit.wire import sandbox_pb2 as wire
from sandbox.engine.kv_cache import BLOCK
from tests.sandbox.processes import SandboxProcess

TALK = ("hello, my name is Maria", "my card is lost", "what is my name?")


def talk(server: SandboxProcess, texts: tuple[str, ...], system: str) -> list[list[int]]:
    session = server.open(system_text=system)
    return [list(server.turn(session, text).token_ids) for text in texts]


def test_s29_the_second_identical_request_equals_the_first(server: SandboxProcess) -> None:
    assert talk(server, TALK, "be kind") == talk(server, TALK, "be kind")


def test_s30_interleaved_sessions_keep_their_own_system_text_and_answers(server: SandboxProcess) -> None:
    alone = {system: talk(server, TALK, system) for system in ("be kind", "be rude")}
    assert alone["be kind"] != alone["be rude"]
    sessions = {system: server.open(system_text=system) for system in alone}
    mixed: dict[str, list[list[int]]] = {system: [] for system in alone}
    for text in TALK:
        for system in alone:
            mixed[system].append(list(server.turn(sessions[system], text).token_ids))
    assert mixed == alone


def test_s31_a_prefix_is_reused_only_within_its_session(server: SandboxProcess) -> None:
    for tenant in ("one", "two"):
        first = server.turn(server.open(tenant=tenant, system_text="be kind"), TALK[0])
        assert first.usage.reused_tokens == 0


def kept_between(before: wire.TurnReply) -> tuple[int, int]:
    """What the next turn reuses at least and at most: whole blocks of the prompt, and of the reply once it is settled."""
    usage = before.usage
    whole = usage.prompt_tokens + usage.generated_tokens - 1
    return (usage.prompt_tokens - 1) // BLOCK * BLOCK, whole // BLOCK * BLOCK


def test_s32_generated_text_is_reused_and_never_encoded_again(server: SandboxProcess) -> None:
    session = server.open(system_text="be kind and brief, and name the account")
    replies = []
    for text in (*TALK, *TALK):
        replies.append(server.turn(session, text, temperature=1.2, seed=3))
        time.sleep(0.3)  # a person reads the reply; the engine settles it
    for before, after in pairwise(replies):
        least, most = kept_between(before)
        assert least <= after.usage.reused_tokens <= most
    assert any(after.usage.reused_tokens > before.usage.prompt_tokens for before, after in pairwise(replies))


def test_s33_stopping_by_length_loses_no_token(server: SandboxProcess) -> None:
    """Replies cut at 1, 3, 1, 5 tokens: warm turns give the tokens of a conversation that was never cached."""
    counts = (1, 3, 1, 5, 17, 30)
    warm = server.open(system_text="be kind")
    replies = [server.turn(warm, "go on", max_new_tokens=count) for count in counts]
    for before, after in pairwise(replies):
        least, most = kept_between(before)
        assert least <= after.usage.reused_tokens <= most
        assert after.usage.prompt_tokens > before.usage.prompt_tokens + before.usage.generated_tokens
    again = server.open(system_text="be kind")
    assert [server.turn(again, "go on", max_new_tokens=count).token_ids for count in counts] == [
        reply.token_ids for reply in replies
    ]


def test_s34_one_prefix_token_and_one_header_a_turn(server: SandboxProcess, tiny_bundle: Path) -> None:
    renderer = ChatRenderer(load_bundle(tiny_bundle).tokenizer)
    session = server.open()
    ids: list[int] = []
    reply_ids: list[int] = []
    for index, text in enumerate(TALK):
        ids += renderer.next_turn(reply_ids, text) if index else renderer.opening(None, text)
        reply = server.turn(session, text)
        assert reply.usage.prompt_tokens == len(ids)
        reply_ids = list(reply.token_ids)
        ids += reply_ids
    assert ids.count(1) == 1


@pytest.mark.parametrize("seed", range(4))
def test_s35_no_torn_characters(server: SandboxProcess, tiny_bundle: Path, seed: int) -> None:
    tokenizer = load_bundle(tiny_bundle).tokenizer
    chunks = list(
        server.stream(
            server.open(locale="zh"), "您好，我的卡丢了", max_new_tokens=80, temperature=1.3, seed=seed
        )
    )
    whole = tokenizer.decode([token for chunk in chunks for token in chunk.token_ids])
    assert "".join(chunk.text for chunk in chunks) == whole == chunks[-1].reply.text


def test_s36_a_stop_string_never_leaks(server: SandboxProcess) -> None:
    whole = server.turn(server.open(), "hello", max_new_tokens=60).text
    for start in range(5, 25, 5):
        stop = whole[start : start + 3]
        chunks = list(server.stream(server.open(), "hello", max_new_tokens=60, stop=[stop]))
        shown = "".join(chunk.text for chunk in chunks)
        assert shown == whole[: whole.index(stop)]
        assert chunks[-1].reply.finish_reason == wire.STOP_STRING


def test_s37_tokens_dont_depend_on_what_runs_beside(server: SandboxProcess) -> None:
    alone = list(server.turn(server.open(), "hello", max_new_tokens=40).token_ids)
    crowd = [server.stream(server.open(), f"noise {number}", max_new_tokens=128) for number in range(15)]
    beside = list(server.turn(server.open(), "hello", max_new_tokens=40).token_ids)
    for call in crowd:
        call.cancel()
    assert beside == alone
