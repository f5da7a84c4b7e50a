"""A served model whose tokenizer isn't known: whole texts are sent as text, and the reply says what its tokens are.

Only the `echo` dialect serves here: it writes each prompt token as a string. The strings must add up to the text, so that
every byte belongs to one token; a token in front that the text doesn't have (the server's BOS) covers none.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evalkit.backends.base import Float32Array
from evalkit.backends.endpoint import ECHO, PROBE, check_not_all_zero
from evalkit.backends.endpoint_client import EndpointClient, Failed, Json, ReplyError
from evalkit.backends.endpoint_reply import checked, read_echo
from evalkit.errors import InputError
from evalkit.tokenization import EncodedText, byte_alphabet

_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")
_BYTES = "bytes:"


@dataclass(frozen=True, eq=False)
class ServedTokens:
    """The tokens of a text as the endpoint read them.

    Attributes:
        encoded: their byte spans; ids are -1, since they aren't known.
        first: the first token that has a log-probability: 0 behind a prefix token of the server, else 1.
        logprob: of the tokens from `first` on.
    """

    encoded: EncodedText
    first: int
    logprob: Float32Array


class EndpointTexts:
    """A served model that is asked with texts."""

    def __init__(self, client: EndpointClient) -> None:
        """Try it with a short text.

        Raises:
            InputError: the endpoint doesn't give the prompt's tokens with their log-probabilities.
            IncompleteError: it doesn't answer.
        """
        self._client = client
        try:
            tokens = client.probe({**ECHO, "prompt": PROBE}, _reader(PROBE))
        except ReplyError as error:
            raise InputError(
                f"{client.url}: no prompt log-probabilities of texts ({error}); serve the model with a server that gives "
                "them by echo, or add tokenizer and max_length, so that token ids are sent"
            ) from None
        check_not_all_zero(client.url, tokens.logprob.tolist())

    def score(self, texts: Sequence[str]) -> list[ServedTokens | Failed]:
        """Tokens and log-probabilities of each text.

        Raises:
            IncompleteError: the endpoint doesn't answer any more.
        """
        return self._client.ask_all(
            [{**ECHO, "prompt": text} for text in texts], [_reader(text) for text in texts]
        )


def _reader(text: str) -> Callable[[Json], ServedTokens]:
    return lambda reply: served_tokens(reply, text)


def served_tokens(reply: Json, text: str) -> ServedTokens:
    """The tokens of `text` from an echo reply.

    Raises:
        ReplyError: they don't add up to the text, or a value isn't a log-probability.
    """
    echoed = read_echo(reply)
    if echoed.strings is None or echoed.ids is not None:
        raise ReplyError("the answer doesn't show its tokens as text: the byte spans aren't known")
    found = _tiling(echoed.strings, echoed.prompt_tokens, text.encode())
    if found is None:
        raise ReplyError(
            "the tokens of the answer don't add up to the text: the endpoint cut it, or doesn't write every token as its text"
        )
    before, ends = found
    first = 1 - before
    values = echoed.logprobs[1 : before + len(ends)]
    logprob = np.array(
        [checked(value, index) for index, value in enumerate(values, start=first)], dtype=np.float32
    )
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
    unknown = np.full(len(ends), -1, dtype=np.int32)
    return ServedTokens(EncodedText(unknown, starts, ends, len(text.encode())), first, logprob)


def _tiling(
    strings: Sequence[str], counted: int | None, data: bytes
) -> tuple[int, npt.NDArray[np.int64]] | None:
    """How many tokens stand before the text (0 or 1), and the byte ends of those that write it; None if they don't."""
    for pieces in _readings(strings):
        # A first token that writes nothing is one that the server put in front.
        for before in (0, 1) if pieces[0] else (1, 0):
            # The space that SentencePiece puts in front covers no byte.
            for wanted in (data, b" " + data):
                stop = _covering(pieces, before, wanted)
                if stop is not None and counted in (None, stop):
                    sizes = np.array([len(piece) for piece in pieces[before:stop]], dtype=np.int64)
                    return before, np.maximum(np.cumsum(sizes) - (len(wanted) - len(data)), 0)
    return None


def _covering(pieces: Sequence[bytes], before: int, wanted: bytes) -> int | None:
    """The index behind the pieces that write exactly `wanted`, beginning with piece `before`."""
    position = 0
    for index in range(before, len(pieces)):
        if not wanted.startswith(pieces[index], position):
            return None
        position += len(pieces[index])
        if position == len(wanted):
            return index + 1
    return None


def _readings(strings: Sequence[str]) -> Iterator[list[bytes]]:
    """The bytes of tokens in the ways in which servers write them: as text, as SentencePiece's, as byte-level BPE's."""
    yield [_text_bytes(string) for string in strings]
    yield [_text_bytes(string.replace("\u2581", " ")) for string in strings]
    alphabet = byte_alphabet()
    if all(character in alphabet for string in strings for character in string):
        yield [bytes(alphabet[character] for character in string) for string in strings]


def _text_bytes(string: str) -> bytes:
    # Tokens that are part of a character: `bytes:\xe4\xbd` (OpenAI) or `<0xE4>` (SentencePiece).
    if string.startswith(_BYTES) and _ESCAPED.search(string):
        return bytes(int(code, 16) for code in _ESCAPED.findall(string))
    fallback = re.fullmatch(r"<0x([0-9A-F]{2})>", string)
    return bytes([int(fallback[1], 16)]) if fallback else string.encode("utf-8", "surrogatepass")
