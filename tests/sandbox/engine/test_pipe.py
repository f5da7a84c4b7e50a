"""Frames between server and engine, however the pipe cuts them."""

from sandbox.domain import Sampling
from sandbox.engine.pipe import FrameSplitter, Message, frame

MESSAGES: list[Message] = [
    {"event": "token", "id": 7, "text": "您"},
    {},
    {"event": "load", "running": 1},
    {"text": "x" * 500},
]


def test_messages_are_the_same_wherever_the_bytes_are_cut() -> None:
    data = b"".join(map(frame, MESSAGES))
    for size in (1, 3, 4, 5, 64, len(data)):
        frames = FrameSplitter()
        found = [
            message for at in range(0, len(data), size) for message in frames.messages(data[at : at + size])
        ]
        assert found == MESSAGES, size


def test_what_lies_in_the_pipe_comes_at_once_and_the_rest_later() -> None:
    data = b"".join(map(frame, MESSAGES))
    frames = FrameSplitter()
    assert frames.messages(data[:-1]) == MESSAGES[:-1]
    assert frames.messages(b"") == []
    assert frames.messages(data[-1:]) == MESSAGES[-1:]


def test_a_sampling_is_written_as_its_fields() -> None:
    sent = frame({"sampling": Sampling(5, temperature=0.5, stop=("a", "b"))})
    assert FrameSplitter().messages(sent) == [
        {
            "sampling": {
                "max_new_tokens": 5,
                "temperature": 0.5,
                "top_k": 0,
                "top_p": 1.0,
                "seed": 0,
                "stop": ["a", "b"],
            }
        }
    ]
