"""Text of a reply while its tokens arrive."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.engine.text_stream import IncrementalDecoder, StopMatcher, TextStream


def byte_tokens(ids: list[int]) -> str:
    """A tokenizer whose tokens are single bytes."""
    return bytes(ids).decode("utf-8", "replace")


def word_tokens(words: list[str]) -> Callable[[list[int]], str]:
    """A tokenizer that drops the space before its first token, as SentencePiece does."""
    return lambda ids: "".join(words[token] for token in ids).lstrip(" ")


@given(st.lists(st.integers(0, 255), max_size=40))
def test_pieces_joined_equal_the_decoding_of_all_ids(ids: list[int]) -> None:
    decoder = IncrementalDecoder(byte_tokens)
    assert "".join([decoder.push(token) for token in ids] + [decoder.flush()]) == byte_tokens(ids)


@given(st.text(max_size=30))
def test_whole_characters_only(text: str) -> None:
    decoder = IncrementalDecoder(byte_tokens)
    pieces = [decoder.push(token) for token in text.encode()]
    assert "".join(pieces).count("\ufffd") <= text.count("\ufffd")
    assert "".join(pieces) + decoder.flush() == text


def test_a_space_that_belongs_to_the_second_token_is_kept() -> None:
    decoder = IncrementalDecoder(word_tokens([" hello", " world"]))
    assert [decoder.push(0), decoder.push(1), decoder.push(0)] == ["hello", " world", " hello"]


def cut(text: str, stops: list[str], pieces: list[str]) -> str:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        more, stopped = matcher.feed(piece)
        shown += more
        if stopped:
            return shown
    return shown + matcher.flush()


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_a_stop_string_is_found_wherever_the_pieces_break(size: int) -> None:
    text = "one tw two STOP three"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert cut(text, ["STOP"], pieces) == "one tw two "
    assert cut(text, ["STOPS", "nothing"], pieces) == text
    assert cut(text, [], pieces) == text


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.feed("hello\n") == ("hello", False)
    assert matcher.feed("there\n\nUs") == ("\nthere", False)
    assert matcher.feed("age") == ("\n\nUsage", False)
    assert matcher.flush() == ""


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=2))
def test_streaming_never_shows_a_stop_string(text: str, stops: list[str]) -> None:
    shown = cut(text, stops, list(text))
    assert not any(stop in shown for stop in stops)
    assert text.startswith(shown)
    if not any(stop in text for stop in stops):
        assert shown == text


def test_a_stop_string_in_the_flushed_rest_counts() -> None:
    stream = TextStream(byte_tokens, ["\ufffd"])
    assert stream.push(0xE4) == ("", False)
    assert stream.finish() == ("", True)
