"""Tokens that come faster than a reader can see go together: none is lost, doubled, or later than the rule says."""

import random
from typing import Any

from sandbox.engine.pacing import PacedOutbox

Message = dict[str, Any]


class Sent:
    """Collects what goes into the pipe, by moments of a clock set by hand."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.writes: list[list[Message]] = []

    def write(self, *messages: Message) -> None:
        self.writes.append(list(messages))

    @property
    def messages(self) -> list[Message]:
        return [message for write in self.writes for message in write]


def paced(interval_ms: float = 20.0) -> tuple[Sent, PacedOutbox]:
    sent = Sent()
    return sent, PacedOutbox(sent, interval_ms, lambda: sent.now_ns)


def token(number: int, text: str = "a", request: int = 1) -> Message:
    return {"event": "token", "request": request, "id": number, "text": text}


def end(number: int | None = None, text: str = "", request: int = 1) -> Message:
    return {"event": "end", "request": request, "id": number, "text": text, "reason": "length", "reused": 3}


def test_the_first_token_goes_at_once_and_those_within_the_interval_together() -> None:
    sent, outbox = paced()
    for number in range(5):
        sent.now_ns = number * 8_000_000
        outbox.write(token(number, "abcde"[number]))
    assert [(message["ids"], message["text"]) for message in sent.messages] == [
        ([0], "a"),
        ([1, 2, 3], "bcd"),
    ]
    outbox.write(end(9, "!"))
    last = sent.messages[-1]
    assert (last["ids"], last["text"], last["reason"], last["reused"]) == ([4, 9], "e!", "length", 3)
    assert "id" not in last


def test_nothing_to_send_is_no_write() -> None:
    sent, outbox = paced()
    outbox.write(token(1))
    outbox.write(token(2))
    assert len(sent.writes) == 1


def test_slow_tokens_and_an_interval_of_zero_change_nothing() -> None:
    for interval_ms, step_ns in ((20.0, 20_000_000), (0.0, 0)):
        sent, outbox = paced(interval_ms)
        for number in range(4):
            sent.now_ns += step_ns
            outbox.write(token(number))
        outbox.write(end())
        assert [message["ids"] for message in sent.messages] == [[0], [1], [2], [3], []]


def test_turns_dont_wait_for_each_other_and_order_stays() -> None:
    sent, outbox = paced()
    outbox.write(token(1, request=1))
    sent.now_ns = 10_000_000
    load = {"event": "load", "running": 2}
    outbox.write(token(2, request=1), token(5, request=2), load, end(6, request=2))
    assert [(message["event"], message.get("ids")) for message in sent.writes[1]] == [
        ("token", [5]),
        ("load", None),
        ("end", [6]),
    ]


def test_a_cancelled_turn_brings_what_was_held_and_a_broken_one_drops_it() -> None:
    sent, outbox = paced()
    outbox.write(token(1), token(2), end())
    assert [message["ids"] for message in sent.messages] == [[1], [2]]
    outbox.write(token(3, request=4), token(4, request=4))
    outbox.write({"event": "broken", "request": 4, "reason": "NaN"})
    assert sent.messages[-1] == {"event": "broken", "request": 4, "reason": "NaN"}
    assert not outbox._held


def test_random_traffic_arrives_whole_and_in_order() -> None:
    dice = random.Random(3)
    sent, outbox = paced()
    said: dict[int, list[int]] = {}
    for number in range(2000):
        sent.now_ns += dice.randrange(0, 2_000_000)
        request = dice.randrange(8) + 8 * (number // 250)
        said.setdefault(request, []).append(number)
        outbox.write(token(number, f"{number} ", request))
    for request in said:
        outbox.write(end(request=request))
    for request, numbers in said.items():
        mine = [message for message in sent.messages if message["request"] == request]
        assert [number for message in mine for number in message["ids"]] == numbers
        assert "".join(message["text"] for message in mine) == "".join(f"{number} " for number in numbers)
    assert not outbox._held
    assert len(sent.messages) < 2000 / 2
